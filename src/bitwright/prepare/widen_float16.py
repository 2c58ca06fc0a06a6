"""Convert the float16 and bfloat16 tensors of a model to float32.

ONNX Runtime's integer kernels take float32 scales only: it fuses a Q/DQ pair with a float16 scale
into one of them and then refuses the model. A float16 scale is also too coarse for 16-bit types.
For bfloat16 it has next to no kernels on CPUs at all.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import NameScope, iter_graphs, shape_of, tensor_slots
from bitwright.graph.editing import append_node, insert_after, insert_behind_value
from bitwright.prepare.passes import PassResult

_HALF, _BRAIN, _FLOAT = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT
# Attributes that hold the number of an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def widen_half_floats(model: ir.Model, *, interface: bool = False) -> PassResult:
    """Turn float16 inside the model into float32, in place; return how many tensors changed.

    With `interface`, its inputs and outputs become float32 as well; else a Cast stands behind
    and before them.
    """
    inputs = [value for value in model.graph.inputs if value.dtype == _HALF]
    outputs = [value for value in model.graph.outputs if value.dtype == _HALF]
    count = _widen_values(model, _HALF, interface=interface)
    if interface:
        return PassResult(count)
    scope = NameScope(model)
    for value in inputs:
        _cast_input(model.graph, value, scope)
    for value in outputs:
        _cast_output(model.graph, value, scope)
    return PassResult(count + len(inputs))


def widen_bfloat16(model: ir.Model) -> PassResult:
    """Turn a model with weights in bfloat16 into one of float32, its inputs and outputs, too.

    Others stay: they may cast to bfloat16 and back, to round as other hardware does.
    """
    tensors = (slot.tensor for slot in tensor_slots(model))
    if not any(tensor.dtype == _BRAIN and tensor.size > 1 for tensor in tensors):
        return PassResult()
    return PassResult(_widen_values(model, _BRAIN, interface=True))


def simulate_float16(model: ir.Model) -> PassResult:
    """Turn a model of float16 into one of float32 that rounds wherever the other does, in place.

    ONNX Runtime's CPU provider computes float16 in float32 and drops the Casts between nodes, so
    that what overflows in half is not seen there. Sums within a node stay float32, as on GPUs.
    """
    nodes = (node for _, graph in iter_graphs(model) for node in graph)
    halves = [value for node in nodes for value in node.outputs if value.dtype == _HALF]
    widen_half_floats(model, interface=True)
    scope = NameScope(model)
    for value in halves:
        for kind in (_FLOAT, _HALF):  # what comes last stands first
            named = {"renamed": scope.fresh(f"{value.name}_exact")}
            named["name"] = scope.fresh(f"{value.name}_Cast")
            to = {"to": int(kind)}
            cast = insert_behind_value(value, "Cast", [], attributes=to, **named)
            cast.outputs[0].dtype = kind
    return PassResult(len(halves))


def _widen_values(model: ir.Model, narrow: ir.DataType, *, interface: bool) -> int:
    """Turn all tensors of a type into float32, and return how many; inputs with `interface`."""
    count = 0
    for path, graph in iter_graphs(model):
        values = [v for node in graph for v in node.outputs]
        values += list(graph.inputs) if path or interface else []
        for value in values:
            if value.dtype == narrow:
                value.dtype = _FLOAT
                count += 1
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype == narrow:
                value.const_value = _widened(value.const_value)
                value.dtype = _FLOAT
                count += 1
        for node in graph:
            _widen_attributes(node, narrow)
    return count


def _widened(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """Return the tensor in float32, made when it is first read."""
    return ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name),
        dtype=_FLOAT,
        shape=shape_of(tensor),
        name=tensor.name,
    )


def _widen_attributes(node: ir.Node, narrow: ir.DataType) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype == narrow:
                node.attributes[name] = ir.AttrTensor(name, _widened(tensor))
        elif name in _TYPE_ATTRIBUTES and attribute.value == narrow:
            node.attributes[name] = ir.AttrInt64(name, int(_FLOAT))


def _cast_input(graph: ir.Graph, value: ir.Value, scope: NameScope) -> None:
    if not value.uses():
        return
    wide = ir.Value(
        name=scope.fresh(f"{value.name}_float"), type=ir.TensorType(_FLOAT), shape=value.shape
    )
    for node, index in list(value.uses()):
        node.replace_input_with(index, wide)
    name = scope.fresh(f"{value.name}_Cast")
    cast = ir.node("Cast", [value], {"to": int(_FLOAT)}, outputs=[wide], name=name)
    insert_after(graph, cast, None)


def _cast_output(graph: ir.Graph, value: ir.Value, scope: NameScope) -> None:
    if value.is_graph_input() or value.dtype != _FLOAT:
        return
    label = value.name or ""
    value.name = scope.fresh(f"{label}_float")
    narrow = ir.Value(name=label, type=ir.TensorType(_HALF), shape=value.shape)
    name = scope.fresh(f"{label}_Cast")
    append_node(graph, "Cast", [value], narrow, name, {"to": int(_HALF)})
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = narrow
