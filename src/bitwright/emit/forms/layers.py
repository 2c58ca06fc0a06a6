"""Integer convolutions of a written Q/DQ model: what they read, and how new integers get in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.emit.qlinear_graph import PairGraph
from bitwright.emit.quantized import Quantized
from bitwright.graph import Quantizer, input_at, maker_of, stored_weight
from bitwright.graph.editing import copy_node, like, replace_constant
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True)
class IntegerConv:
    """A Conv that the runtime fuses with the pairs around it."""

    node: ir.Node
    source: Quantized
    weight: Quantizer
    """Integers of 8 bits, with one scale or one for each output channel."""
    bias: Quantizer | None
    group: int

    @property
    def channels_in(self) -> int:
        """Number of channels that it reads."""
        return int(self.weight.codes.shape[1]) * self.group

    @property
    def channels_out(self) -> int:
        """Number of channels that it writes."""
        return int(self.weight.codes.shape[0])

    @property
    def weight_zeros(self) -> Array:
        """The integer that stands for 0, one for each output channel, ready to be broadcast."""
        integers = self.weight.codes
        zero = self.weight.zero_point
        zeros = np.zeros(1, integers.dtype) if zero is None else zero.reshape(-1)
        rows = np.broadcast_to(zeros.astype(integers.dtype), (len(integers),))
        return rows.reshape(-1, *[1] * (integers.ndim - 1))

    def with_columns(self, count: int, positions: Array) -> Array:
        """Return the integers of the weight for more inputs; zeros for all but these positions."""
        integers = self.weight.codes
        shape = (len(integers), count, *integers.shape[2:])
        wide = np.broadcast_to(self.weight_zeros, shape).copy()
        wide[:, positions] = integers
        return wide


def integer_conv(graph: PairGraph, node: ir.Node) -> IntegerConv | None:
    """Return a node as an integer convolution; None for anything else."""
    if node.op_type != "Conv" or node.domain:
        return None
    operands, result = graph.operands(node.inputs[:1]), graph.result(node.outputs[0])
    weight = _stored(node, 1)
    if operands is None or result is None or weight is None or weight.codes.itemsize != 1:
        return None
    bias = _stored(node, 2)
    if (bias is None) != (input_at(node, 2) is None):
        return None
    if not operands[0].is_whole or not result.is_whole:
        return None
    return IntegerConv(node, operands[0], weight, bias, node.attributes.get_int("group", 1))


def _stored(node: ir.Node, index: int) -> Quantizer | None:
    dequantizer = maker_of(input_at(node, index))
    if dequantizer is None or dequantizer.op_type != "DequantizeLinear":
        return None
    stored = stored_weight(dequantizer)
    if stored is None or (found := stored.constants()) is None:
        return None
    per_channel = found[0].size > 1 and stored.axis % stored.codes.ndim != 0
    return None if per_channel or stored.block_size else stored


def store(graph: PairGraph, node: ir.Node, index: int, arrays: dict[int, Array]) -> None:
    """Give the dequantizer before a node's input new constants, by their places in it.

    One that other nodes read, too, stays as it is, and the node gets a dequantizer of its own.
    """
    value = node.inputs[index]
    assert value is not None
    dequantizer = value.producer()
    assert dequantizer is not None
    if len(value.uses()) > 1:
        fresh = like(value, graph.names.fresh(value.name or ""))
        name = graph.names.fresh(dequantizer.name or "")
        dequantizer = copy_node(dequantizer, dequantizer.inputs, [fresh], name)
        assert node.graph is not None
        node.graph.insert_before(node, dequantizer)
        node.replace_input_with(index, fresh)
    for place, array in arrays.items():
        replace_constant(dequantizer, place, array, f"{value.name}_{place}", graph.names)
    dequantizer.outputs[0].shape = ir.Shape(arrays[0].shape)
