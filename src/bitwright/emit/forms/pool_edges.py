"""Clips that keep the float MaxPools at the edge of the integers float.

ONNX Runtime moves a quantizer in front of the MaxPool that it follows, and a dequantizer behind the
MaxPool that it feeds (`onnxruntime/core/optimizer/qdq_transformer/qdq_propagation.cc`). The pool
then runs on bytes in NCHW, 8 to 25 times as long as the float one. A Clip in between stops that:

    Q(Clip(MaxPool(x), low + .3 s, high - .3 s))     low, high: the least and the greatest number
    MaxPool(Clip(DQ(q), low, high))                  of the quantizer; s: its scale

Within .3 of a step the ends round to the same integers. A Clip to the whole range in front of a
quantizer would be removed (`qdq_transformer/clip_quantizelinear.cc`). A quantizer is only moved
where it is the pool's one reader. Bytes that an integer convolution writes lie in NHWC, where the
pool has a fast kernel: then it stays on them. A pool between equal pairs behind floats reads the
floats, as the greatest of rounded numbers is the greatest number, rounded.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph import constant_of, insert_before, like, maker_of

_MARGIN = 0.3
"""Steps: less than half of one, so that the ends still round to themselves."""


def write_pool_edges(model: ir.Model) -> int:
    """Put a Clip between a float MaxPool and the integers on one side; return to how many."""
    graph = PairGraph(model)
    pools = [node for node in model.graph.all_nodes() if node.op_type == "MaxPool"]
    return sum(_write_edge(graph, pool) for pool in pools if not pool.domain)


def _write_edge(graph: PairGraph, pool: ir.Node) -> bool:
    value, result = pool.inputs[0], pool.outputs[0]
    source, target = graph.operand(value), graph.result(result)
    if source is not None:
        quantized = _float_source(source)
        if value is None or quantized is None or not source.is_whole:
            return False
        if not graph.quantizers(result):
            pool.replace_input_with(0, _clip(graph, pool, value, source, 0.0))
            return True
        if target is None or not target.means_the_same_as(source):
            return False
        pool.replace_input_with(0, quantized)
    if target is None or not target.is_whole:
        return False
    (quantizer,) = graph.quantizers(result)
    quantizer.replace_input_with(0, _clip(graph, quantizer, result, target, _MARGIN))
    return True


def _float_source(integers: Quantized) -> ir.Value | None:
    """Return the float tensor that is quantized to integers; None where an integer node does it."""
    quantizer = integers.value.producer()
    if quantizer is None or quantizer.op_type != "QuantizeLinear":
        return None
    value = quantizer.inputs[0]
    maker = maker_of(value)
    makers = () if maker is None else map(maker_of, maker.inputs)
    is_integer = any(n is not None and n.op_type == "DequantizeLinear" for n in makers)
    return None if is_integer else value


def _clip(
    graph: PairGraph, place: ir.Node, value: ir.Value, numbers: Quantized, margin: float
) -> ir.Value:
    """Return a value within the range of a quantizer, less a margin in steps on either side."""
    scale, zero = constant_of(numbers.scale), constant_of(numbers.zero_point)
    assert scale is not None and zero is not None
    ends = np.iinfo(zero.dtype)
    label, step = value.name or "", scale.reshape(())
    bounds = [
        graph.constant(f"{label}_{name}", step.dtype.type(end - zero.item() + shift) * step)
        for name, end, shift in (("min", ends.min, margin), ("max", ends.max, -margin))
    ]
    clipped = like(value, graph.names.fresh(f"{label}_clipped"))
    name = graph.names.fresh(f"{place.name}_range")
    return insert_before(place, "Clip", [value, *bounds], clipped, name)
