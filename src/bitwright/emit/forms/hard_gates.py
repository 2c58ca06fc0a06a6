"""HardSigmoid and HardSwish between pairs as additions that saturate.

    HardSigmoid(x) = clip(a x + b, 0, 1)
    g = Q(DQ(x) + b/a; scale s/a, lowest zero point)     saturates where HardSigmoid is 0
    HardSigmoid(x) = DQ(g; scale s, lowest zero point)   the same integers, divided by 1/a
    HardSwish(x) = x * DQ(g; scale 1/255)                with a = 1/6, b = 1/2, s = 1/255

ONNX Runtime has no integer kernel for either; it fuses these pairs to QLinearAdd and QLinearMul
(`onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc`,
`BinaryOpQDQRules`). Conditions: one scale each and the same 8-bit type on both sides; the result of
a HardSigmoid has the lowest zero point and a range that ends at or below 1, so that saturation at
the top is the same, too.

HardSigmoid's integers are the same, but where a x + b lies between two of them, one level beside.
HardSwish rounds once more: its gate, to 255 levels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.editing import remove_nodes

__all__ = ["write_hard_gates"]


def write_hard_gates(model: ir.Model) -> int:
    """Write each HardSigmoid and HardSwish between pairs as integer operators; return how many."""
    graph = PairGraph(model)
    nodes = [n for n in model.graph.all_nodes() if n.op_type in _WRITERS and not n.domain]
    return sum(_write(graph, node) for node in nodes)


def _write(graph: PairGraph, node: ir.Node) -> bool:
    source, result = graph.operand(node.inputs[0]), graph.result(node.outputs[0])
    if source is None or result is None or source.dtype != result.dtype:
        return False
    scales = constant_of(source.scale), constant_of(result.scale)
    whole = source.is_whole and result.is_whole
    if not whole or any(scale is None or scale.dtype != np.float32 for scale in scales):
        return False
    return _WRITERS[node.op_type](graph, node, result)


def _write_sigmoid(graph: PairGraph, node: ir.Node, result: Quantized) -> bool:
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    scale, zero = constant_of(result.scale), constant_of(result.zero_point)
    assert scale is not None and zero is not None
    step, lowest = scale.item(), np.iinfo(zero.dtype).min
    if min(alpha, beta) <= 0 or zero.item() != lowest or 255 * step > 1 + step / 2:
        return False
    (quantizer,) = graph.quantizers(node.outputs[0])
    parameters = graph.parameters(f"{node.name}_gate", step / alpha, zero)
    gate = _add_offset(graph, node, beta / alpha, zero)
    gate_node = gate.producer()
    for index, value in enumerate((gate, *parameters)):
        quantizer.replace_input_with(index, value)
    assert gate_node is not None
    remove_nodes([node])
    return True


def _write_swish(graph: PairGraph, node: ir.Node, result: Quantized) -> bool:
    zero = constant_of(result.zero_point)
    assert zero is not None
    lowest = np.asarray(np.iinfo(zero.dtype).min, zero.dtype)
    name = f"{node.name}_gate"
    shape = node.outputs[0].shape
    total = _add_offset(graph, node, 3.0, lowest)
    integers = graph.insert(
        node,
        "QuantizeLinear",
        [total, *graph.parameters(name, 6 / 255, lowest)],
        name=f"{name}_QuantizeLinear",
        output=f"{name}_quantized",
        dtype=result.dtype,
        shape=shape,
    )
    gate = graph.insert(
        node,
        "DequantizeLinear",
        [integers, *graph.parameters(f"{name}_share", 1 / 255, lowest)],
        name=f"{name}_DequantizeLinear",
        output=f"{name}_dequantized",
        dtype=ir.DataType.FLOAT,
        shape=shape,
    )
    node.op_type, node.version = "Mul", None
    node.resize_inputs(2)
    node.replace_input_with(1, gate)
    return True


_WRITERS = {"HardSigmoid": _write_sigmoid, "HardSwish": _write_swish}


def _add_offset(graph: PairGraph, node: ir.Node, offset: float, zero: np.ndarray) -> ir.Value:
    """Return what a node reads plus a constant, which is dequantized as the kernel wants it."""
    name = f"{node.name}_offset"
    highest = np.asarray(np.iinfo(zero.dtype).max, zero.dtype)
    constant = graph.insert(
        node,
        "DequantizeLinear",
        [graph.constant(name, highest), *graph.parameters(name, offset / 255, zero)],
        name=f"{name}_DequantizeLinear",
        output=f"{name}_dequantized",
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape([]),
    )
    return graph.insert(
        node,
        "Add",
        [input_at(node, 0), constant],
        name=f"{node.name}_add",
        output=f"{node.name}_sum",
        dtype=ir.DataType.FLOAT,
        shape=node.outputs[0].shape,
    )
