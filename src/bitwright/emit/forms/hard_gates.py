"""HardSigmoid and HardSwish between pairs as additions that saturate.

    HardSigmoid(x) = clip(a x + b, 0, 1)
    g = Q(DQ(x) + b/a; scale s/a, lowest zero point)     saturates where HardSigmoid is 0
    HardSigmoid(x) = DQ(g; scale s, lowest zero point)   the same integers, divided by 1/a
    HardSwish(x) = x * DQ(g; scale 1/255)                with a = 1/6, b = 1/2, s = 1/255

ONNX Runtime has no integer kernel for either; it fuses these pairs to QLinearAdd and QLinearMul
(`onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc`,
`BinaryOpQDQRules`). Conditions: one scale each and the same 8-bit type on both sides; the result of
a HardSigmoid has the lowest zero point and a range that ends at or below 1, so that saturation at
the top is the same, too; or nothing but a Mul between pairs reads it, as in HardSwish.

HardSigmoid's integers are the same, but where a x + b lies between two of them, one level beside.
What is multiplied is rounded once more: the gate, to 255 levels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import EIGHT_BITS, PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph import constant_of, input_at, is_private, remove_nodes, replace_inputs
from bitwright.support.array_types import Array


def write_hard_gates(model: ir.Model) -> int:
    """Write each HardSigmoid and HardSwish between pairs as integer operators; return how many."""
    graph = PairGraph(model)
    nodes = [n for n in model.graph.all_nodes() if n.op_type in _WRITERS and not n.domain]
    return sum(_write(graph, node) for node in nodes)


def _write(graph: PairGraph, node: ir.Node) -> bool:
    source = graph.operand(node.inputs[0])
    if source is None or source.dtype not in EIGHT_BITS or not _is_float_scale(source):
        return False
    return _WRITERS[node.op_type](graph, node, source)


def _is_float_scale(numbers: Quantized) -> bool:
    """Whether integers have one scale, of the type that the integer kernels take."""
    return numbers.is_whole and numbers.scale.dtype == ir.DataType.FLOAT


def _may_follow(source: Quantized, result: Quantized | None) -> bool:
    return result is not None and result.dtype == source.dtype and _is_float_scale(result)


def _write_sigmoid(graph: PairGraph, node: ir.Node, source: Quantized) -> bool:
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    gate = node.outputs[0]
    if min(alpha, beta) <= 0:
        return False
    result = graph.result(gate)
    if result is None and _is_factor(graph, gate, source):
        gate.replace_all_uses_with(_write_gate(graph, node, alpha, beta, source))
        remove_nodes([node])
        return True
    if result is None or not _may_follow(source, result):
        return False
    scale, zero = constant_of(result.scale), constant_of(result.zero_point)
    lowest = _lowest(source)
    if scale is None or zero is None or zero.item() != lowest.item():
        return False
    if 255 * scale.item() > 1 + scale.item() / 2:
        return False
    (quantizer,) = graph.quantizers(gate)
    total = _add_offset(graph, node, beta / alpha, lowest)
    parameters = graph.parameters(f"{node.name}_gate", scale.item() / alpha, lowest)
    replace_inputs(quantizer, [total, *parameters])
    remove_nodes([node])
    return True


def _is_factor(graph: PairGraph, gate: ir.Value, source: Quantized) -> bool:
    """Whether a value is only multiplied, between pairs, with another tensor."""
    if not is_private(gate):
        return False
    ((product, index),) = gate.uses()
    if product.op_type != "Mul" or product.domain:
        return False
    other = graph.operand(product.inputs[1 - index])
    return _may_follow(source, other) and _may_follow(source, graph.result(product.outputs[0]))


def _write_swish(graph: PairGraph, node: ir.Node, source: Quantized) -> bool:
    if not _may_follow(source, graph.result(node.outputs[0])):
        return False
    gate = _write_gate(graph, node, 1 / 6, 0.5, source)
    node.op_type, node.version = "Mul", None
    replace_inputs(node, [node.inputs[0], gate])
    return True


_WRITERS = {"HardSigmoid": _write_sigmoid, "HardSwish": _write_swish}


def _lowest(numbers: Quantized) -> Array:
    """Return the lowest integer of a type, as a zero point."""
    assert numbers.dtype is not None
    dtype = numbers.dtype.numpy()
    return np.asarray(np.iinfo(dtype).min, dtype)


def _write_gate(
    graph: PairGraph, node: ir.Node, alpha: float, beta: float, source: Quantized
) -> ir.Value:
    """Return the HardSigmoid of what a node reads, rounded to 255 levels."""
    name, lowest = f"{node.name}_gate", _lowest(source)
    total = _add_offset(graph, node, beta / alpha, lowest)
    written = graph.parameters(name, 1 / alpha / 255, lowest)
    return graph.paired(
        node, name, total, written, graph.parameters(f"{name}_share", 1 / 255, lowest)
    )


def _add_offset(graph: PairGraph, node: ir.Node, offset: float, zero: Array) -> ir.Value:
    """Return what a node reads plus a constant, which is dequantized as the kernel wants it."""
    name = f"{node.name}_offset"
    highest = np.asarray(np.iinfo(zero.dtype).max, zero.dtype)
    constant = graph.stored(node, name, highest, offset / 255, zero)
    return graph.insert(
        node,
        "Add",
        [input_at(node, 0), constant],
        name=f"{node.name}_add",
        output=f"{node.name}_sum",
        dtype=ir.DataType.FLOAT,
        shape=node.outputs[0].shape,
    )
