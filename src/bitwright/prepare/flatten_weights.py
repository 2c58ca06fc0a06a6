"""Weights [1, K, N] of MatMul become matrices, as which n-bit products take them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import NameScope
from bitwright.graph.constants import is_constant
from bitwright.graph.editing import drop_if_unused
from bitwright.graph.subgraphs import iter_graphs
from bitwright.graph.tensors import reshaped

__all__ = ["flatten_weights"]


def flatten_weights(model: ir.Model) -> int:
    """Drop the leading axes of one element that weights of MatMul have; return how many had some.

    A product of an input with fewer axes than its weight gets its missing ones from an Unsqueeze.
    Where it is not known how many axes the input has, the weight stays as it is. Weights are not
    read.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> flatten_weights(ir.Model(graph, ir_version=10))
    0
    """
    names = NameScope(model)
    flat: dict[ir.Value, ir.Value] = {}
    opset = model.opset_imports.get("", 13)
    for _, graph in iter_graphs(model):
        for node in list(graph):
            if node.domain or node.op_type != "MatMul":
                continue
            source, weight = node.inputs
            if source is None or weight is None or not _has_leading_ones(weight):
                continue
            assert weight.shape is not None
            if source.shape is None:
                continue
            # A vector counts as a row, and the row goes again.
            missing = len(weight.shape) - max(len(source.shape), 2)
            if missing > 0 and opset < 13:
                continue
            if weight not in flat:
                flat[weight] = _matrix_of(weight, names)
            node.replace_input_with(1, flat[weight])
            if missing > 0:
                _widen_result(node, missing, names)
    for weight in flat:
        drop_if_unused(weight)
    return len(flat)


def _has_leading_ones(weight: ir.Value) -> bool:
    if weight.shape is None or len(weight.shape) < 3 or not weight.shape.is_static():
        return False
    return (
        weight.is_initializer()
        and is_constant(weight)
        and all(size == 1 for size in weight.shape[:-2])
    )


def _matrix_of(weight: ir.Value, names: NameScope) -> ir.Value:
    """Return the same constant as a matrix, in the same graph."""
    graph, tensor, shape = weight.graph, weight.const_value, weight.shape
    assert graph is not None and tensor is not None and shape is not None
    name = names.fresh(f"{weight.name}_matrix")
    value = ir.Value(
        name=name,
        type=weight.type,
        shape=ir.Shape(shape[-2:]),
        const_value=reshaped(tensor, [int(size) for size in shape.numpy()[-2:]], name),
    )
    graph.register_initializer(value)
    return value


def _widen_result(node: ir.Node, missing: int, names: NameScope) -> None:
    """Put the axes that the weight had more than the input in front of the result."""
    graph, result = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    label = names.fresh(f"{node.name}_axes")
    axes = ir.Value(
        name=label,
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([missing]),
        const_value=ir.tensor(np.arange(missing), name=label),
    )
    graph.register_initializer(axes)
    widened = ir.node("Unsqueeze", [result, axes], name=names.fresh(f"{node.name}_widened"))
    total = widened.outputs[0]
    total.type, total.shape = result.type, result.shape
    kept, result.shape = result.name, None
    ir.convenience.replace_all_uses_with(result, total, replace_graph_outputs=True)
    widened.replace_input_with(0, result)
    result.name = names.fresh(f"{kept}_product")
    total.name = kept
    graph.insert_after(node, widened)
