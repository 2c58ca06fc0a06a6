"""Inputs with a default value: initializers that callers of a model may override."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitwright.graph.names import NameScope

__all__ = ["HiddenDefaults", "hide_defaults"]

_DOMAIN, _OP = "bitwright.internal", "Default"


@dataclass(frozen=True, slots=True)
class HiddenDefaults:
    """The inputs with a default that a model had, to be shown again when it is written."""

    order: tuple[str, ...] = ()
    """The names of all inputs, in their order."""
    nodes: tuple[str, ...] = ()
    """The nodes that stand for those with a default."""

    def show(self, model: ir.Model) -> None:
        """Make the hidden initializers inputs with a default again, in place."""
        if not self.nodes:
            return
        for node in [node for node in model.graph if node.domain == _DOMAIN]:
            stored, given = node.inputs[0], node.outputs[0]
            assert stored is not None and stored.const_value is not None
            name, tensor = given.name, stored.const_value
            value = ir.Value(name=name, type=stored.type, shape=stored.shape, const_value=tensor)
            given.replace_all_uses_with(value)
            model.graph.remove(node, safe=True)
            model.graph.initializers.pop(stored.name or "")
            model.graph.inputs.append(value)
            model.graph.register_initializer(value)
        inputs = sorted(model.graph.inputs, key=lambda value: self.order.index(value.name or ""))
        model.graph.inputs.clear()
        model.graph.inputs.extend(inputs)
        model.functions.pop((_DOMAIN, _OP, ""))
        model.opset_imports.pop(_DOMAIN)


def hide_defaults(model: ir.Model) -> HiddenDefaults:
    """Put a node behind each initializer that is an input, in place, so that nobody folds it.

    What the node gives is no constant for any pass, and a session needs no feed for it.

    >>> graph = ir.Graph([ir.Value(name="x")], [], nodes=[], opset_imports={"": 21})
    >>> hide_defaults(ir.Model(graph, ir_version=10)).nodes
    ()
    """
    graph, scope = model.graph, NameScope(model)
    order = tuple(value.name or "" for value in graph.inputs)
    hidden = [value for value in graph.inputs if value.is_initializer()]
    if not hidden:
        return HiddenDefaults()
    kept = [value for value in graph.inputs if not value.is_initializer()]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    nodes = []
    for stored in hidden:
        name = stored.name or ""
        given = ir.Value(type=stored.type, shape=stored.shape)
        stored.replace_all_uses_with(given)
        stored.name = scope.fresh(f"{name}_default")
        given.name = name
        label = scope.fresh(f"{name}_Default")
        node = ir.node(_OP, [stored], domain=_DOMAIN, outputs=[given], name=label)
        graph.insert_before(graph[0], node)
        nodes.append(label)
    function = _identity_function(model.opset_imports[""])
    model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
    return HiddenDefaults(order, tuple(nodes))


def _identity_function(opset: int) -> ir.Function:
    source = ir.Value(name="x")
    node = ir.node("Identity", [source])
    node.outputs[0].name = "y"
    body = ir.Graph([source], node.outputs, nodes=[node], opset_imports={"": opset})
    return ir.Function(_DOMAIN, _OP, graph=body, attributes=[])
