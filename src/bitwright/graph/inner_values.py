"""Inner tensors of a model, exposed as graph outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.cloning import clone_model
from bitwright.graph.editing import add_initializer, append_node, copy_node
from bitwright.graph.names import NameScope
from bitwright.graph.shapes import element_type, static_shape
from bitwright.graph.subgraphs import iter_values, owner_nodes, subgraphs_of


class Exposed(NamedTuple):
    """A model with extra outputs, and the output's name for each tensor that was asked for."""

    model: ir.Model
    outputs: dict[str, str]


def expose(model: ir.Model, tensor_names: Iterable[str], *, keep_outputs: bool = True) -> Exposed:
    """Return a clone (sharing tensor data) whose extra graph outputs are these tensors.

    Names are qualified names (see `bitwright.graph.subgraphs`). A tensor of the main graph is
    returned as it is. One from inside a body comes flattened to one dimension: all iterations of a
    Loop or Scan after each other, and of an If only what the branch that ran has made (else no
    elements). With keep_outputs=False the model's own outputs go, so that the runtime need not
    compute them.
    """
    clone = clone_model(model)
    if not keep_outputs:
        clone.graph.outputs.clear()
    lifter = _Lifter(clone)
    outputs: dict[str, str] = {}
    shown = set(clone.graph.outputs)
    for name in dict.fromkeys(tensor_names):
        visible = lifter.lift(name)
        assert visible.name is not None
        outputs[name] = visible.name
        if visible not in shown:
            shown.add(visible)
            clone.graph.outputs.append(visible)
    return Exposed(clone, outputs)


class _Lifter:
    """Carries tensors out of the bodies of one model, changing it in place."""

    def __init__(self, model: ir.Model) -> None:
        self.main = model.graph
        self.known = dict(iter_values(model))
        self.owners = owner_nodes(model)
        self.scope = NameScope(model)

    def lift(self, name: str) -> ir.Value:
        """Return a value of the main graph that holds this tensor."""
        if name not in self.known:
            raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, self.known)}")
        value = self.known[name]
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        if graph is self.main:
            if value.producer() is not None:
                return value
            # The runtime does not return an input or a weight as it is.
            output = self.scope.fresh(f"{name}_exposed")
            return self.append(graph, "Identity", [value], output, element_type(value))
        dtype = element_type(value)
        if dtype is None:
            raise ModelError(
                f"the type of tensor {name!r} is not known, so it cannot be observed; "
                "run infer_shapes on the model first."
            )
        shape = static_shape(value)
        size = int(np.prod(shape)) if shape is not None else None
        lifted = self.flatten(graph, value, dtype)
        while graph is not self.main:
            owner = self.owners[graph]
            outer = owner.graph
            assert isinstance(outer, ir.Graph)
            through = self.lift_through.get(owner.op_type) if not owner.domain else None
            if through is None:
                raise ModelError(
                    f"tensor {name!r} is inside a {owner.op_type} node, "
                    "whose body cannot be observed."
                )
            lifted = through(self, graph, lifted, dtype, size)
            size = None  # depends on the branch taken, or on the number of iterations
            graph = outer
        return lifted

    def through_if(
        self, branch: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[branch]
        for _, body in subgraphs_of(owner):
            if body is branch:
                body.outputs.append(flat)
            else:
                absent = self.empty(dtype, f"{flat.name}_absent")
                body.append(absent)
                body.outputs.append(absent.outputs[0])
        return self.new_output(owner, f"{flat.name}_if", dtype)

    def through_scan(
        self, body: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[body]
        body.outputs.append(flat)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in owner.attributes:
                owner.attributes[name] = ir.AttrInt64s(name, [*owner.attributes[name].as_ints(), 0])
        stacked = self.new_output(owner, f"{flat.name}_scan", dtype)
        assert isinstance(owner.graph, ir.Graph)
        return self.flatten(owner.graph, stacked, dtype)

    def through_loop(
        self, body: ir.Graph, flat: ir.Value, dtype: ir.DataType, size: int | None
    ) -> ir.Value:
        owner = self.owners[body]
        outer = owner.graph
        assert isinstance(outer, ir.Graph)
        if size is not None:
            body.outputs.append(flat)
            stacked = self.new_output(owner, f"{flat.name}_scan", dtype)
            return self.flatten(outer, stacked, dtype)
        # Scan outputs must have one shape in all iterations. This one may not, so it is carried
        # along as state: everything so far, with this iteration's elements behind it.
        start = self.empty(dtype, f"{flat.name}_start")
        outer.insert_before(owner, start)
        so_far = _vector(self.scope.fresh(f"{flat.name}_so_far"), dtype)
        longer = self.scope.fresh(f"{flat.name}_longer")
        joined = self.append(body, "Concat", [so_far, flat], longer, dtype, {"axis": 0})
        carried = len(body.inputs) - 2  # besides the iteration number and the condition
        body.inputs.append(so_far)
        body.outputs.insert(1 + carried, joined)
        result = _vector(self.scope.fresh(f"{flat.name}_loop"), dtype)
        self.rebuild(owner, start.outputs[0], result, carried)
        return result

    lift_through: ClassVar[dict[str, Callable[..., ir.Value]]] = {
        "If": through_if,
        "Loop": through_loop,
        "Scan": through_scan,
    }

    def rebuild(self, node: ir.Node, extra: ir.Value, result: ir.Value, position: int) -> None:
        """Make a node anew with one more input and output: a value's place is fixed at birth."""
        old = list(node.outputs)
        new = [
            ir.Value(
                name=value.name,
                type=value.type,
                shape=value.shape,
                metadata_props=dict(value.metadata_props),
            )
            for value in old
        ]
        outputs = [*new[:position], result, *new[position:]]
        replacement = copy_node(node, [*node.inputs, extra], outputs, node.name)
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [replacement], old, new)
        renewed = dict(zip(old, new, strict=True))
        self.known = {name: renewed.get(value, value) for name, value in self.known.items()}
        self.owners.update((body, replacement) for _, body in subgraphs_of(replacement))

    def append(
        self,
        graph: ir.Graph,
        op_type: str,
        inputs: list[ir.Value],
        output: str,
        dtype: ir.DataType | None,
        attributes: dict[str, int] | None = None,
    ) -> ir.Value:
        """Add a node at the end of a graph and return its output."""
        result = ir.Value(name=output, type=ir.TensorType(dtype) if dtype is not None else None)
        name = self.scope.fresh(f"{output}_{op_type}")
        return append_node(graph, op_type, inputs, result, name, attributes)

    def flatten(self, graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a Reshape to one dimension."""
        name, sizes = f"{value.name}_flat_shape", np.array([-1], np.int64)
        shape = add_initializer(graph, self.scope, name, sizes)
        output = self.scope.fresh(f"{value.name}_flat")
        flat = self.append(graph, "Reshape", [value, shape], output, dtype)
        flat.shape = ir.Shape([None])
        return flat

    def empty(self, dtype: ir.DataType, name: str) -> ir.Node:
        """Make a tensor without elements; a node, because a body may not return an initializer."""
        fresh, kind = self.scope.fresh(name), ir.TensorType(dtype)
        result = ir.Value(name=fresh, type=kind, shape=ir.Shape([0]))
        tensor = ir.tensor(np.empty([0], dtype.numpy()), dtype=dtype, name=result.name)
        label = self.scope.fresh(f"{name}_Constant")
        return ir.node("Constant", [], {"value": tensor}, outputs=[result], name=label)

    def new_output(self, node: ir.Node, name: str, dtype: ir.DataType) -> ir.Value:
        """Give a node one more output, behind those it has."""
        node.resize_outputs(len(node.outputs) + 1)
        value = node.outputs[-1]
        value.name = self.scope.fresh(name)
        value.type = ir.TensorType(dtype)
        return value


def _vector(name: str, dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None]))
