"""Reshape weights [1, K, N] of MatMul to matrices, which n-bit products take."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import is_constant, reshaped
from bitwright.graph.editing import add_initializer, drop_if_unused, graph_of, insert_behind_value
from bitwright.prepare.passes import PassResult, Scope, rewrite_nodes


def flatten_weights(model: ir.Model) -> PassResult:
    """Drop the leading axes of one element that weights of MatMul have; return how many had some.

    A product of an input with fewer axes than its weight gets its missing ones from an Unsqueeze.
    Where it is not known how many axes the input has, the weight stays as it is. Weights are not
    read.
    """
    flat: dict[ir.Value, ir.Value] = {}

    def flatten(node: ir.Node, names: Scope) -> bool:
        source, weight = node.inputs
        if source is None or weight is None or not _has_leading_ones(weight):
            return False
        assert weight.shape is not None
        if source.shape is None:
            return False
        # A vector counts as a row, and the row goes again.
        missing = len(weight.shape) - max(len(source.shape), 2)
        if missing > 0 and names.opset < 13:
            return False
        if weight not in flat:
            flat[weight] = _matrix_of(weight, names)
        node.replace_input_with(1, flat[weight])
        if missing > 0:
            _widen_result(node, missing, names)
        return True

    rewrite_nodes(model, ("MatMul",), flatten)
    for weight in flat:
        drop_if_unused(weight)
    return PassResult(len(flat))


def _has_leading_ones(weight: ir.Value) -> bool:
    if weight.shape is None or len(weight.shape) < 3 or not weight.shape.is_static():
        return False
    return (
        weight.is_initializer()
        and is_constant(weight)
        and all(size == 1 for size in weight.shape[:-2])
    )


def _matrix_of(weight: ir.Value, names: Scope) -> ir.Value:
    """Return the same constant as a matrix, in the same graph."""
    tensor, shape = weight.const_value, weight.shape
    assert tensor is not None and shape is not None
    sizes = [int(size) for size in shape.numpy()[-2:]]
    name = f"{weight.name}_matrix"
    return add_initializer(graph_of(weight), names, name, reshaped(tensor, sizes, name))


def _widen_result(node: ir.Node, missing: int, names: Scope) -> None:
    """Put the axes that the weight had more than the input in front of the result."""
    result = node.outputs[0]
    axes = add_initializer(graph_of(result), names, f"{node.name}_axes", np.arange(missing))
    name, renamed = names.fresh(f"{node.name}_widened"), names.fresh(f"{result.name}_product")
    insert_behind_value(result, "Unsqueeze", [axes], renamed=renamed, name=name)
    result.shape = None
