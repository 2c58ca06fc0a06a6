"""Tensors inside a model made visible as its outputs, also those inside If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.cloning import clone_model
from bitwright.graph.naming import NameScope
from bitwright.graph.shapes import element_type, static_shape
from bitwright.graph.tensors import shape_of
from bitwright.graph.walking import iter_values, owner_nodes, subgraphs_of

__all__ = ["Exposed", "expose"]


class Exposed(NamedTuple):
    """A model with extra outputs, and the output's name for each tensor that was asked for."""

    model: ir.Model
    outputs: dict[str, str]


def expose(model: ir.Model, tensor_names: Iterable[str], *, keep_outputs: bool = True) -> Exposed:
    """Return a clone (sharing tensor data) whose extra graph outputs are these tensors.

    Names are qualified names (see `bitwright.graph.walking`). A tensor of the main graph is
    returned as it is. One from inside a body comes flattened to one dimension: all iterations of a
    Loop or Scan after each other, and of an If only what the branch that ran has made (else no
    elements). With keep_outputs=False the model's own outputs go, so that the runtime need not
    compute them.
    """
    twin = clone_model(model)
    known = dict(iter_values(twin))
    scope = NameScope(twin)
    owners = owner_nodes(twin)
    outputs: dict[str, str] = {}
    already = {value.name for value in twin.graph.outputs}
    exposed: list[ir.Value] = []
    for name in dict.fromkeys(tensor_names):
        value = known.get(name)
        if value is None:
            raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, known)}")
        visible = _lift(value, twin.graph, name, scope, owners)
        assert visible.name is not None
        outputs[name] = visible.name
        if keep_outputs and visible.name in already:
            continue
        exposed.append(visible)
    if not keep_outputs:
        twin.graph.outputs.clear()
    twin.graph.outputs.extend(exposed)
    return Exposed(twin, outputs)


def _lift(
    value: ir.Value,
    main: ir.Graph,
    name: str,
    scope: NameScope,
    owners: dict[ir.Graph, ir.Node],
) -> ir.Value:
    graph = value.graph
    if graph is main:
        if value.producer() is not None:
            return value
        # The runtime does not return an input or a weight as it is.
        return _append(
            main, "Identity", [value], scope.fresh(f"{name}_exposed"), scope, value.dtype
        )
    dtype = element_type(value)
    if dtype is None:
        raise ModelError(
            f"the type of tensor {name!r} is not known, so it cannot be observed; "
            "run infer_shapes on the model first."
        )
    assert isinstance(graph, ir.Graph)
    size = _element_count(value)
    lifted = _flatten(graph, value, dtype, size, scope)
    while graph is not main:
        owner = owners[graph]
        outer = owner.graph
        assert isinstance(outer, ir.Graph)
        if owner.op_type == "If" and not owner.domain:
            lifted = _through_if(owner, graph, lifted, dtype, scope)
            size = None  # nothing, if the other branch runs
        elif owner.op_type == "Loop" and not owner.domain:
            lifted = _through_loop(owner, graph, lifted, dtype, size, scope, owners)
            size = None
        elif owner.op_type == "Scan" and not owner.domain:
            lifted = _through_scan(owner, graph, lifted, dtype, scope)
            size = None
        else:
            raise ModelError(
                f"tensor {name!r} is inside a {owner.op_type} node, whose body cannot be observed."
            )
        graph = outer
    return lifted


def _element_count(value: ir.Value) -> int | None:
    shape = static_shape(value)
    return int(np.prod(shape)) if shape is not None else None


def _append(
    graph: ir.Graph,
    op_type: str,
    inputs: list[ir.Value],
    output: str,
    scope: NameScope,
    dtype: ir.DataType | None,
    attributes: dict[str, int] | None = None,
) -> ir.Value:
    result = ir.Value(name=output, type=ir.TensorType(dtype) if dtype is not None else None)
    graph.append(
        ir.node(
            op_type,
            inputs,
            attributes=attributes,
            outputs=[result],
            name=scope.fresh(f"{output}_{op_type}"),
        )
    )
    return result


def _constant(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=shape_of(tensor),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def _flatten(
    graph: ir.Graph, value: ir.Value, dtype: ir.DataType, size: int | None, scope: NameScope
) -> ir.Value:
    shape = _constant(graph, np.array([-1], np.int64), scope.fresh(f"{value.name}_flat_shape"))
    name = scope.fresh(f"{value.name}_flat")
    flat = _append(graph, "Reshape", [value, shape], name, scope, dtype)
    flat.shape = ir.Shape([size])
    return flat


def _empty(graph: ir.Graph, dtype: ir.DataType, name: str, scope: NameScope) -> ir.Value:
    """Make a tensor without elements; a node, because a body may not return an initializer."""
    tensor = ir.tensor(np.empty([0], dtype.numpy()), dtype=dtype, name=name)
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([0]))
    node = ir.Node(
        "",
        "Constant",
        [],
        [ir.AttrTensor("value", tensor)],
        outputs=[result],
        name=scope.fresh(f"{name}_Constant"),
    )
    graph.append(node)
    return result


def _new_output(node: ir.Node, name: str, dtype: ir.DataType) -> ir.Value:
    node.resize_outputs(len(node.outputs) + 1)
    value = node.outputs[-1]
    value.name = name
    value.type = ir.TensorType(dtype)
    return value


def _through_if(
    owner: ir.Node, branch: ir.Graph, flat: ir.Value, dtype: ir.DataType, scope: NameScope
) -> ir.Value:
    for _, body in subgraphs_of(owner):
        if body is branch:
            body.outputs.append(flat)
        else:
            body.outputs.append(_empty(body, dtype, scope.fresh(f"{flat.name}_absent"), scope))
    result = _new_output(owner, scope.fresh(f"{flat.name}_if"), dtype)
    result.shape = ir.Shape([None])
    return result


def _through_scan(
    owner: ir.Node, body: ir.Graph, flat: ir.Value, dtype: ir.DataType, scope: NameScope
) -> ir.Value:
    body.outputs.append(flat)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in owner.attributes:
            owner.attributes[name] = ir.AttrInt64s(name, [*owner.attributes[name].as_ints(), 0])
    stacked = _new_output(owner, scope.fresh(f"{flat.name}_scan"), dtype)
    assert isinstance(owner.graph, ir.Graph)
    return _flatten_after(owner, stacked, dtype, scope)


def _through_loop(
    owner: ir.Node,
    body: ir.Graph,
    flat: ir.Value,
    dtype: ir.DataType,
    size: int | None,
    scope: NameScope,
    owners: dict[ir.Graph, ir.Node],
) -> ir.Value:
    if size is not None:
        body.outputs.append(flat)
        stacked = _new_output(owner, scope.fresh(f"{flat.name}_scan"), dtype)
        return _flatten_after(owner, stacked, dtype, scope)
    # Scan outputs must have one shape in all iterations. This one may not, so it is carried along:
    # everything so far, with this iteration's elements behind it.
    graph = owner.graph
    assert isinstance(graph, ir.Graph)
    start = _empty_before(owner, dtype, scope.fresh(f"{flat.name}_start"), scope)
    so_far = ir.Value(
        name=scope.fresh(f"{flat.name}_so_far"),
        type=ir.TensorType(dtype),
        shape=ir.Shape([None]),
    )
    name = scope.fresh(f"{flat.name}_longer")
    longer = _append(body, "Concat", [so_far, flat], name, scope, dtype, {"axis": 0})
    carried = len(body.inputs) - 2  # besides the iteration number and the condition
    body.inputs.append(so_far)
    body.outputs.insert(1 + carried, longer)
    old = list(owner.outputs)
    result = ir.Value(
        name=scope.fresh(f"{flat.name}_loop"), type=ir.TensorType(dtype), shape=ir.Shape([None])
    )
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in old]
    outputs.insert(carried, result)
    # A value's position is fixed at birth, so the node is made anew with one output more.
    bodies = list(owner.attributes.values())
    replacement = ir.Node(
        owner.domain,
        owner.op_type,
        [*owner.inputs, start],
        bodies,
        outputs=outputs,
        name=owner.name,
        doc_string=owner.doc_string,
        metadata_props=dict(owner.metadata_props),
    )
    owners[body] = replacement
    survivors = outputs[:carried] + outputs[carried + 1 :]
    ir.convenience.replace_nodes_and_values(graph, owner, [owner], [replacement], old, survivors)
    return result


def _empty_before(owner: ir.Node, dtype: ir.DataType, name: str, scope: NameScope) -> ir.Value:
    graph = owner.graph
    assert isinstance(graph, ir.Graph)
    value = _empty(graph, dtype, name, scope)
    node = value.producer()
    assert node is not None
    graph.remove(node)
    graph.insert_before(owner, node)
    return value


def _flatten_after(
    owner: ir.Node, stacked: ir.Value, dtype: ir.DataType, scope: NameScope
) -> ir.Value:
    graph = owner.graph
    assert isinstance(graph, ir.Graph)
    return _flatten(graph, stacked, dtype, None, scope)
