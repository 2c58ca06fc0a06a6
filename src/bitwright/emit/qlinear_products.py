"""Integer forms of the ops that multiply weights: Conv, MatMul and Gemm."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph.constants import constant_of, input_at
from bitwright.support.array_types import Array

_FLOAT = ir.DataType.FLOAT
_INT32 = ir.DataType.INT32


def lower_conv(graph: PairGraph, node: ir.Node) -> str | None:
    """QLinearConv; ConvInteger and a float rest where result or bias are float."""
    operands = graph.operands(node.inputs[:2])
    if operands is None:
        return "its input or weight is not an 8-bit integer"
    source, weight = operands
    bias = input_at(node, 2)
    stored = _stored_bias(graph, bias, source, weight)
    result = graph.result(node.outputs[0])
    if result is not None and (bias is None or stored is not None):
        if not _has_kernel(source, weight, result):
            return _no_kernel("Conv", source, weight, result)
        inputs = [*graph.triple(source), *graph.triple(weight), *graph.pair(result)]
        if stored is not None:
            inputs.append(stored)
        graph.substitute(node, "QLinearConv", inputs, node.attributes)
        return None
    return _lower_to_conv_integer(graph, node, source, weight, bias)


def _lower_to_conv_integer(
    graph: PairGraph, node: ir.Node, source: Quantized, weight: Quantized, bias: ir.Value | None
) -> str | None:
    zeros = constant_of(weight.zero_point)
    addend = _bias_array(graph, bias)
    if zeros is None or np.any(zeros != zeros.flat[0]):
        return "its channels have zero points of their own"
    if bias is not None and addend is None:
        return "its bias is computed at run time"
    zero_point = weight.zero_point
    if zeros.size > 1:
        zero_point = graph.constant(f"{zero_point.name}_scalar", zeros.flat[0].reshape(()))
    rank = len(node.inputs[1].shape) if node.inputs[1] is not None and node.inputs[1].shape else 4
    kernel = [graph.unsigned(value) for value in (weight.value, zero_point)]
    inputs = [source.value, kernel[0], source.zero_point, kernel[1]]
    scale = _product_scale(source, weight)
    if scale.ndim:
        scale = scale.reshape(-1, *(1,) * (rank - 2))
    if addend is not None:
        addend = addend.reshape(-1, *(1,) * (rank - 2))
    _accumulate(graph, node, "ConvInteger", inputs, scale, addend)
    return None


def lower_matmul(graph: PairGraph, node: ir.Node) -> str | None:
    """QLinearMatMul; MatMulInteger and a scale where the result is float or types are mixed."""
    operands = graph.operands(node.inputs)
    if operands is None:
        return "an input of it is not an 8-bit integer"
    left, right = operands
    if not left.is_whole:
        return "its first input has a scale for each row"
    result = graph.result(node.outputs[0])
    if result is not None and _has_kernel(left, right, result):
        inputs = [*graph.triple(left), *graph.triple(right), *graph.pair(result)]
        graph.substitute(node, "QLinearMatMul", inputs)
        return None
    inputs = [left.value, right.value, left.zero_point, right.zero_point]
    _accumulate(graph, node, "MatMulInteger", inputs, _product_scale(left, right), None)
    return None


def lower_gemm(graph: PairGraph, node: ir.Node) -> str | None:
    """QGemm; a C that is not at the product's scale is added to its float result."""
    operands = graph.operands(node.inputs[:2])
    if operands is None:
        return "an input of it is not an 8-bit integer"
    left, right = operands
    addend = input_at(node, 2)
    factors = [node.attributes.get_float("alpha", 1.0)]
    if addend is not None:
        factors.append(node.attributes.get_float("beta", 1.0))
    if any(factor != 1.0 for factor in factors):
        return "its alpha or beta is not 1"
    result = graph.result(node.outputs[0])
    if not _has_kernel(left, right, result or left) or not left.is_whole:
        return _no_kernel("Gemm", left, right, result or left)
    attributes = {k: v for k, v in node.attributes.items() if k in ("transA", "transB")}
    stored = _stored_bias(graph, addend, left, right)
    inputs = [*graph.triple(left), *graph.triple(right), stored]
    if result is not None and (addend is None or stored is not None):
        graph.substitute(node, "QGemm", [*inputs, *graph.pair(result)], attributes)
        return None
    label, shape = f"{node.outputs[0].name}_product", node.outputs[0].shape
    insert = partial(graph.insert, node, name=f"{node.name}_quant", output=label, shape=shape)
    total = insert("QGemm", inputs, attributes, dtype=_FLOAT)
    if addend is not None and stored is None:
        total = _add(graph, node, total, addend)
    graph.write_float(node, total)
    return None


# What they share ------------------------------------------------------------------------------


def _has_kernel(left: Quantized, right: Quantized, result: Quantized) -> bool:
    """Whether the runtime has this pair of types: int8 goes with int8, uint8 with both."""
    signed_left = left.dtype == ir.DataType.INT8
    signed_right = right.dtype == ir.DataType.INT8
    return left.dtype == result.dtype and (signed_right or not signed_left)


def _no_kernel(op_type: str, *items: Quantized) -> str:
    types = [item.dtype.name.lower() if item.dtype is not None else "?" for item in items]
    return f"ONNX Runtime has no integer {op_type} from {types[0]} and {types[1]} to {types[2]}"


def _product_scale(left: Quantized, right: Quantized) -> Array:
    arrays = [constant_of(left.scale), constant_of(right.scale)]
    assert arrays[0] is not None and arrays[1] is not None
    one, two = arrays[0].reshape(()), arrays[1]
    return np.asarray(one * (two.reshape(()) if two.size == 1 else two))


def _stored_bias(
    graph: PairGraph, bias: ir.Value | None, source: Quantized, weight: Quantized
) -> ir.Value | None:
    """Return the int32 integers of a bias, if its scale is the one that kernels take it to have."""
    stored = graph.operand(bias)
    if stored is None or stored.value.dtype != _INT32:
        return None
    scale = constant_of(stored.scale)
    if scale is None:
        return None
    expected = _product_scale(source, weight).reshape(-1)
    close = np.allclose(scale.reshape(-1), expected, rtol=1e-5, atol=0.0)
    return stored.value if close else None


def _bias_array(graph: PairGraph, bias: ir.Value | None) -> Array | None:
    """Return a constant bias as float, whether it is stored so or as integers."""
    array = constant_of(bias)
    stored = graph.operand(bias)
    if stored is None:
        return array
    parts = [constant_of(v) for v in (stored.value, stored.scale, stored.zero_point)]
    if any(part is None for part in parts):
        return None
    integers, scale, zeros = (np.asarray(part, np.float64) for part in parts)
    return ((integers - zeros) * scale).astype(np.float32)


def _accumulate(
    graph: PairGraph,
    node: ir.Node,
    op_type: str,
    inputs: list[ir.Value],
    scale: Array,
    addend: Array | None,
) -> None:
    """Write int32 sums, then their scale and the bias in float: the product without a result type.

    The runtime fuses MatMulInteger, Cast and Mul into one kernel.
    """
    label, shape = node.outputs[0].name, node.outputs[0].shape
    insert, name = partial(graph.insert, node, shape=shape), f"{node.name}_quant"
    stem = f"{label}_output_quantized"
    sums = insert(op_type, inputs, node.attributes, name=name, output=stem, dtype=_INT32)
    stem, to_float = f"{sums.name}_cast", {"to": _FLOAT.value}
    floats = insert("Cast", [sums], to_float, name=stem, output=f"{stem}_output", dtype=_FLOAT)
    factors = [floats, graph.constant(f"{name}_scales", scale)]
    name = f"{name}_output_scale_mul"
    total = insert("Mul", factors, name=name, output=f"{label}_scaled", dtype=_FLOAT)
    if addend is not None:
        stored = graph.constant(f"{label}_bias", addend.astype(np.float32))
        total = _add(graph, node, total, stored)
    graph.write_float(node, total)


def _add(graph: PairGraph, node: ir.Node, total: ir.Value, addend: ir.Value) -> ir.Value:
    label = node.outputs[0].name
    insert = partial(graph.insert, node, name=f"{label}_bias_add", output=f"{label}_biased")
    return insert("Add", [total, addend], dtype=total.dtype, shape=total.shape)
