"""Normalize a model: inline functions, lift constants, unique names, sorted nodes."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import (
    InlinePass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedFunctionsPass,
)

from bitwright.errors import AlreadyQuantizedError, ModelError
from bitwright.graph.checking import is_in_order
from bitwright.graph.editing import add_initializer, insert_before, remove_unused_initializers
from bitwright.graph.names import NameScope
from bitwright.graph.quantized_ops import DEQUANTIZERS, INTEGER_OPS, QUANTIZERS, ROUNDERS
from bitwright.graph.shapes import element_type
from bitwright.graph.subgraphs import iter_graphs, values_of
from bitwright.graph.tensors import tensor_in, tensor_slots
from bitwright.support import counted, without_collection

_VENDOR_DOMAINS = ("com.vai.quantize", "com.amd.quark")
"""Domains of quantizers that may bring a body along, which is no reason to forget their name."""

_QUANTIZED_OPS = (
    QUANTIZERS
    | DEQUANTIZERS
    | ROUNDERS
    | INTEGER_OPS.keys()
    | {"DynamicQuantizeLinear", "MatMulInteger16", "QOrderedMatMul"}
)


@without_collection()
def normalize(model: ir.Model, *, keep_defaults: bool = False) -> list[str]:
    """Bring a model to the one form that the rest of Bitwright works on, in place.

    Model-local functions are inlined, but for a vendor's quantizers; Constant nodes become
    initializers, initializers that are also graph inputs become constants, node names become
    unique, nodes are sorted and unused initializers go. With keep_defaults initializers that are
    inputs stay both. Returns a sentence for each thing that a user may want to know.
    """
    notes: list[str] = []
    _refuse_sparse(model)
    _inline_functions(model, notes)
    names = NameScope(model)
    _lift_constants(model, names, notes)
    if not keep_defaults:
        _fix_initializer_inputs(model, notes)
    _name_nodes(model, names, notes)
    try:
        if not is_in_order(model):
            model.graph.sort()
    except ValueError as error:
        raise ModelError("the model has nodes that feed each other in a circle.") from error
    _drop_unit_dilations(model)
    if dropped := remove_unused_initializers(model):
        notes.append(f"removed {counted(len(dropped), 'unused initializer')}: {_listed(dropped)}.")
    doubles = [s.name for s in tensor_slots(model) if s.tensor.dtype == ir.DataType.DOUBLE]
    if doubles:
        what = counted(len(doubles), "tensor")
        notes.append(f"{what} of float64 stay as they are: {_listed(doubles)}.")
    return notes


def _drop_unit_dilations(model: ir.Model) -> None:
    """Leave out the dilations of an average pool that has none.

    The runtime copies the attribute into its integer pool, which does not know it.
    """
    for node in model.graph.all_nodes():
        if node.op_type == "AveragePool" and set(node.attributes.get_ints("dilations", [])) == {1}:
            node.attributes.pop("dilations")


def find_quantized_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that show that a model is quantized already (QDQ, integer operators)."""
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type in _QUANTIZED_OPS or node.op_type.startswith("QLinear")
    ]


def refuse_unsupported(model: ir.Model, *, allow_quantized: bool = False) -> None:
    """Raise a ModelError for a model that is already quantized, all float64 or all bfloat16.

    Types must be known (see `infer_shapes`).
    """
    quantized = find_quantized_nodes(model)
    if quantized and not allow_quantized:
        first = quantized[0]
        count = f"{len(quantized)} nodes such as" if len(quantized) > 1 else "node"
        name = first.name or "(unnamed)"
        raise AlreadyQuantizedError(
            f"the model is already quantized ({count} {first.op_type} {name!r}); "
            "give the float model it was made from, or keep its scales with import_qat (--qat)."
        )
    types = _element_types(model)
    if types & {ir.DataType.FLOAT, ir.DataType.FLOAT16}:
        return
    for dtype, word in ((ir.DataType.DOUBLE, "float64"), (ir.DataType.BFLOAT16, "bfloat16")):
        if dtype in types:
            raise ModelError(
                f"the model computes in {word} throughout; "
                "float32 and float16 are quantized, so export it as float32."
            )


def _element_types(model: ir.Model) -> set[ir.DataType | None]:
    # A lone number (an epsilon, a Resize scale) does not make a model float32.
    return {
        element_type(value)
        for _, graph in iter_graphs(model)
        for value in values_of(graph)
        if not value.is_initializer()
        or value.is_graph_input()
        or (value.const_value and value.const_value.size > 8)
    }


def _refuse_sparse(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if "sparse_value" in node.attributes:
            raise ModelError(
                f"node {node.name or node.op_type!r} holds a sparse tensor, which is not "
                "supported; export the model with dense weights."
            )


def _inline_functions(model: ir.Model, notes: list[str]) -> None:
    if not model.functions:
        return
    inlined = [f for f in model.functions.values() if f.domain not in _VENDOR_DOMAINS]
    if not inlined:
        return
    names = sorted({function.name for function in inlined})
    try:
        InlinePass(criteria=lambda function: function.domain not in _VENDOR_DOMAINS)(model)
    except Exception as error:  # PassError, or whatever a malformed function leads to
        raise ModelError(
            f"the model-local functions ({', '.join(names[:3])}) cannot be inlined; "
            "export the model without functions."
        ) from error
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    notes.append(f"inlined {counted(len(names), 'model-local function')}: {_listed(names)}.")


def _lift_constants(model: ir.Model, names: NameScope, notes: list[str]) -> None:
    lifted = sum(
        _lift_constant(graph, node, names)
        for _, graph in iter_graphs(model)
        for node in list(graph)
    )
    if lifted:
        notes.append(f"turned {counted(lifted, 'Constant node')} into initializers.")


# Not onnx-ir's LiftConstantsToInitializersPass: where a graph returns a constant, its readers keep
# reading the node; value_ints and the like are lifted only together with strings; and its check of
# each tensor against a protocol takes longer than to load it.
def _lift_constant(graph: ir.Graph, node: ir.Node, names: NameScope) -> bool:
    if node.op_type != "Constant" or node.domain:
        return False
    output = node.outputs[0]
    returned = output.is_graph_output()  # then it stays a node, and its readers get a copy
    if not output.name or (returned and not output.uses()):
        return False
    tensor = _constant_tensor(node)
    if tensor is None:
        return False
    name = names.fresh(f"{output.name}_constant") if returned else output.name
    value = add_initializer(graph, None, name, tensor)
    value.metadata_props.update(output.metadata_props)
    for reader, index in list(output.uses()):
        reader.replace_input_with(index, value)
    if not returned:
        graph.remove(node, safe=True)
    return True


def _constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for key, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if key == "value" and attribute.type == ir.AttributeType.TENSOR:
            return tensor_in(attribute)
        if key == "value_float":
            return ir.tensor(attribute.as_float(), dtype=ir.DataType.FLOAT)
        if key == "value_floats":
            return ir.tensor(list(attribute.as_floats()), dtype=ir.DataType.FLOAT)
        if key == "value_int":
            return ir.tensor(attribute.as_int(), dtype=ir.DataType.INT64)
        if key == "value_ints":
            return ir.tensor(list(attribute.as_ints()), dtype=ir.DataType.INT64)
    return None  # strings stay nodes: nothing of ours reads them


def _fix_initializer_inputs(model: ir.Model, notes: list[str]) -> None:
    fixed = [v.name or "" for v in model.graph.inputs if v.name in model.graph.initializers]
    if not fixed:
        return
    RemoveInitializersFromInputsPass()(model)
    notes.append(
        f"{counted(len(fixed), 'initializer')} could be overridden as graph input and "
        f"{'is' if len(fixed) == 1 else 'are'} constant now: {_listed(fixed)}."
    )


# Not onnx-ir's NameFixPass: it makes node names unique in each body by itself, but plans know nodes
# of all bodies by name; it also renames values, and takes names for nodes that values have.
def _name_nodes(model: ir.Model, scope: NameScope, notes: list[str]) -> None:
    seen: set[str] = set()
    renamed = named = 0
    for _, graph in iter_graphs(model):
        for node in graph:
            if not node.name:
                output = next((v.name for v in node.outputs if v.name), "")
                node.name = scope.fresh(f"{node.op_type}_{output}" if output else node.op_type)
                named += 1
            elif node.name in seen:
                node.name = scope.fresh(node.name)
                renamed += 1
            seen.add(node.name)
    if named:
        notes.append(f"named {counted(named, 'nameless node')} after type and output.")
    if renamed:
        notes.append(f"renamed {counted(renamed, 'node')} whose name another node had.")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown}, …" if len(names) > 5 else shown


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
        insert_before(graph[0], _OP, [stored], given, label, domain=_DOMAIN)
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
