"""Rules that replace a float operator by its integer form: one small rule per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import RULES, OpRule
from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.qlinear_products import lower_conv, lower_gemm, lower_matmul
from bitwright.emit.quantized import Quantized, embedding_inputs
from bitwright.graph.constants import constant_of, input_at
from bitwright.numerics.quantize import quantize
from bitwright.numerics.types import INT8, UINT8

IntegerRule = Callable[[PairGraph, ir.Node], "str | None"]
"""Puts the integer op in a node's place, or returns why there is none."""

Attributes = Mapping[str, Any]


# Element-wise ops, pools, softmax: integers in, integers out -----------------------------------


def _softmax_attributes(graph: PairGraph, node: ir.Node) -> Attributes:
    # The op itself is version 1 for ever: what its axis means is told by this attribute.
    opset = graph.model.opset_imports.get("", 13)
    return {"axis": node.attributes.get_int("axis", -1 if opset >= 13 else 1), "opset": opset}


def _qlinear(
    op_type: str,
    *,
    data: tuple[int, ...] | None = None,
    attributes: Callable[[PairGraph, ir.Node], Attributes] = lambda _, node: node.attributes,
    result_first: bool = False,
) -> IntegerRule:
    """Return the rule for an op of com.microsoft that reads (integers, scale, zero point) thrice.

    Inputs that are not `data` (None: all are) come first, as a condition does.
    """

    def lower(graph: PairGraph, node: ir.Node) -> str | None:
        chosen = range(len(node.inputs)) if data is None else data
        rest = [value for index, value in enumerate(node.inputs) if index not in chosen]
        operands = graph.operands([node.inputs[index] for index in chosen])
        result = graph.result(node.outputs[0])
        reason = _refuse(node, operands, result)
        if reason is not None or operands is None or result is None:
            return reason
        read = [value for item in operands for value in graph.triple(item)]
        given = graph.pair(result)
        inputs: Sequence[ir.Value | None] = [*given, *read] if result_first else [*read, *given]
        graph.substitute(node, op_type, [*rest, *inputs], attributes(graph, node))
        return None

    return lower


def _refuse(
    node: ir.Node, operands: list[Quantized] | None, result: Quantized | None
) -> str | None:
    if operands is None:
        return "an input of it is not an 8-bit integer"
    if result is None:
        return "its result is read as float"
    if any(item.dtype != result.dtype for item in operands):
        return "its inputs and its result differ in type"
    if not all(item.is_whole for item in (*operands, result)):
        return "its inputs or its result have a scale for each channel"
    return None


def _lower_average_pool(graph: PairGraph, node: ir.Node) -> str | None:
    if any(step != 1 for step in node.attributes.get_ints("dilations", [])):
        return "ONNX Runtime has no integer AveragePool with dilations"
    kept = {k: v for k, v in node.attributes.items() if k != "dilations"}
    return _qlinear("QLinearAveragePool", attributes=lambda *_: kept)(graph, node)


# Clipping that a quantizer does not do -----------------------------------------------------------


def _lower_clip(graph: PairGraph, node: ir.Node) -> str | None:
    if node.op_type == "Relu":
        if _lower_to_clip(graph, node, 0.0, None) is None:
            return None
        # Where the scales differ, it is a LeakyRelu without a leak.
        return _qlinear("QLinearLeakyRelu", attributes=lambda *_: {"alpha": 0.0})(graph, node)
    bounds = []
    for value in (*node.inputs[1:], None, None)[:2]:
        array = constant_of(value)
        if value is not None and array is None:
            return "its bounds are computed at run time"
        bounds.append(None if array is None else float(array.reshape(-1)[0]))
    return _lower_to_clip(graph, node, *bounds)


def _lower_to_clip(
    graph: PairGraph, node: ir.Node, low: float | None, high: float | None
) -> str | None:
    """Clip integers: quantizing is monotone, so it may be done to the bounds beforehand."""
    source = graph.operand(node.inputs[0])
    result = graph.result(node.outputs[0])
    if source is None or result is None or not result.means_the_same_as(source):
        return "its input and its result have different scales"
    bounds: list[ir.Value | None] = []
    for label, bound in (("min", low), ("max", high)):
        value = None
        if bound is not None and np.isfinite(bound):
            value = _quantized_constant(graph, f"{node.name}_{label}", bound, source)
        bounds.append(value)
    name, output = f"{node.name}_quant", f"{graph.label(node.outputs[0])}_quantized"
    insert = partial(graph.insert, node, dtype=source.dtype, shape=node.outputs[0].shape)
    graph.join(node, insert("Clip", [source.value, *bounds], name=name, output=output))
    return None


def _quantized_constant(graph: PairGraph, name: str, number: float, like: Quantized) -> ir.Value:
    scale, zero_point = constant_of(like.scale), constant_of(like.zero_point)
    assert scale is not None and zero_point is not None
    qtype = INT8 if like.dtype == ir.DataType.INT8 else UINT8
    stored = quantize(np.float32(number), scale.reshape(()), zero_point.reshape(()), qtype)
    return graph.constant(name, np.asarray(stored))


# Ops that only move values ------------------------------------------------------------------------


def _move(graph: PairGraph, node: ir.Node) -> str | None:
    operands = graph.operands(node.inputs[:1])
    if operands is None:
        return "its input is not an 8-bit integer"
    if not operands[0].is_whole:
        return "its input has a scale for each channel"
    if not graph.move_integers(node, operands[0]):
        return "its result has another scale than its input, or is read as float"
    return None


def _lower_pad(graph: PairGraph, node: ir.Node) -> str | None:
    filled = node.attributes.get_string("mode", "constant") == "constant"
    value = input_at(node, 2)
    source = graph.operand(node.inputs[0])
    reason = _move(graph, node)
    if reason is not None or source is None:
        return reason
    if filled:
        node.resize_inputs(max(3, len(node.inputs)))
        node.replace_input_with(2, _quantized_value(graph, node, value, source))
    elif value is not None:
        node.replace_input_with(2, None)
    return None


def _quantized_value(
    graph: PairGraph, node: ir.Node, value: ir.Value | None, like: Quantized
) -> ir.Value:
    """Return what a Pad of integers fills in, with the scale of what it pads."""
    if value is None:
        # What stands for 0 among integers is the zero point, which nobody would fill in for us.
        return like.zero_point
    array = constant_of(value)
    if array is not None:
        number = float(array.reshape(-1)[0])
        return _quantized_constant(graph, f"{value.name}_quantized", number, like)
    name, output = f"{value.name}_QuantizeLinear", f"{value.name}_quantized"
    insert = partial(graph.insert, node, dtype=like.dtype, shape=value.shape)
    return insert("QuantizeLinear", [value, *graph.pair(like)], name=name, output=output)


def _lower_arg_max(graph: PairGraph, node: ir.Node) -> str | None:
    operands = graph.operands(node.inputs[:1])
    if operands is None:
        return "its input is not an 8-bit integer"
    # A positive scale keeps the order, and equal integers were equal numbers.
    node.replace_input_with(0, operands[0].value)
    return None


def _lower_embedding(graph: PairGraph, node: ir.Node) -> str | None:
    """QEmbedLayerNormalization: tables and norm as integers, the result in float."""
    if len(node.outputs) > 2 and node.outputs[2].uses():
        return "ONNX Runtime's integer EmbedLayerNormalization does not give the sum"
    tables = [*node.inputs[2:7]]
    operands = graph.operands([value for value in tables if value is not None])
    if operands is None:
        return "a table of it is not an 8-bit integer"
    if len({item.dtype for item in operands}) > 1:
        return "its tables differ in type"
    waiting = iter(operands)
    found = [None if value is None else next(waiting) for value in tables]
    inputs = embedding_inputs(node, found)
    attributes = {k: v for k, v in node.attributes.items() if k == "epsilon"}
    graph.exchange(node, "QEmbedLayerNormalization", inputs, attributes)
    return None


# Integer op -> what puts it in place, where that is not simply to read and write integers.
_FORMS: dict[str, IntegerRule] = {
    "QLinearConv": lower_conv,
    "QLinearMatMul": lower_matmul,
    "QGemm": lower_gemm,
    "QLinearSoftmax": _qlinear("QLinearSoftmax", attributes=_softmax_attributes),
    "QLinearAveragePool": _lower_average_pool,
    "QLinearGlobalAveragePool": _qlinear(
        "QLinearGlobalAveragePool",
        attributes=lambda _, node: {**node.attributes, "channels_last": 0},
    ),
    "QLinearConcat": _qlinear("QLinearConcat", result_first=True),
    "QEmbedLayerNormalization": _lower_embedding,
    "Clip": _lower_clip,
    "Pad": _lower_pad,
    "ArgMax": _lower_arg_max,
}


def _integer_rule(op: OpRule) -> IntegerRule:
    assert op.integer_op is not None
    if op.integer_op in _FORMS:
        return _FORMS[op.integer_op]
    return _move if op.integer_op == op.op_type else _qlinear(op.integer_op, data=op.data)


INTEGER_OPS = {op.op_type: _integer_rule(op) for op in RULES.values() if op.integer_op is not None}
"""Float op -> what puts its integer op in place."""
