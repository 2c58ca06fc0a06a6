"""Linear nodes, y = W x + b with a constant W: the channels of its numbers, and what is added."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS
from bitwright.graph import is_constant, static_shape
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True, eq=False)
class LinearNode:
    """A Conv, ConvTranspose, Gemm or MatMul with its constant weight."""

    node: ir.Node
    weight: Array

    @property
    def is_conv(self) -> bool:
        """Whether the channels are axis 1 of (batch, channel, space...)."""
        return self.node.op_type in CONVOLUTIONS

    @property
    def group(self) -> int:
        """In how many parts the channels are divided; 1 where the node does not say."""
        return self.node.attributes.get_int("group", 1) if self.is_conv else 1

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel sees one input channel, and each of those is seen once."""
        group, outputs, inputs, _ = self.by_channel(self.weight).shape
        return bool(group > 1 and outputs == inputs == 1)

    @property
    def out_channels(self) -> int:
        """How many channels it writes."""
        group, outputs, _, _ = self.by_channel(self.weight).shape
        return int(group * outputs)

    @property
    def in_channels(self) -> int:
        """How many channels it reads."""
        group, _, inputs, _ = self.by_channel(self.weight).shape
        return int(group * inputs)

    @property
    def is_well_formed(self) -> bool:
        """Whether the weight has numbers, and the shape that its op wants."""
        if self.is_conv:
            fits = self.weight.ndim > 2 and self.group > 0
            return fits and self.weight.size > 0 and self.weight.shape[0] % self.group == 0
        return self.weight.ndim == 2 and self.weight.size > 0

    def by_channel(self, weight: Array) -> Array:
        """Return an array of the weight's shape as a view: group, output, input, kernel."""
        if self.is_conv:
            view = weight.reshape(self.group, weight.shape[0] // self.group, weight.shape[1], -1)
            return view if self.node.op_type == "Conv" else view.swapaxes(1, 2)
        if self.node.op_type == "Gemm" and self.node.attributes.get_int("transB", 0) != 0:
            return weight[None, :, :, None]
        return weight.T[None, :, :, None]


@dataclass(frozen=True, slots=True)
class BiasSum:
    """An Add of a constant that is the only reader of a MatMul's result."""

    product: ir.Node
    node: ir.Node
    index: int
    """Which input of the Add is the constant."""

    @property
    def bias(self) -> ir.Value:
        """The constant."""
        value = self.node.inputs[self.index]
        assert value is not None
        return value

    @property
    def may_become_gemm(self) -> bool:
        """Whether ONNX Runtime may compute both as one Gemm, before it looks at any Q/DQ pair.

        It does so for a matrix times a matrix plus one number a column, and for stacks of
        matrices once all their dimensions are known: to it, which may know more than we do, or
        is told by its user. Where nothing quantizes the sum, its integer Gemm takes the numbers
        in int32 only, and floats would keep the whole product in float. In a sum that stays an
        Add, int32 costs next to nothing.
        """
        left, right = self.product.inputs
        if left is None or right is None or right.shape is None or len(right.shape) != 2:
            return False
        columns = right.shape[1]
        is_matrix = left.shape is None or len(left.shape) == 2
        shape = static_shape(self.bias)
        return shape == (columns,) or (is_matrix and shape == (1, columns))


def bias_sum_behind(product: ir.Node) -> BiasSum | None:
    """Return the sum that alone reads what a MatMul computes, if it is one with a constant."""
    if product.op_type != "MatMul" or product.outputs[0].is_graph_output():
        return None
    uses = product.outputs[0].uses()
    if len(uses) != 1:
        return None
    node, index = next(iter(uses))
    if node.op_type != "Add" or not is_constant(node.inputs[1 - index]):
        return None
    return BiasSum(product, node, 1 - index)


def bias_sum_of(node: ir.Node) -> BiasSum | None:
    """Return what an Add is part of, if it puts a constant on top of a MatMul."""
    makers = (value.producer() for value in node.inputs if value is not None)
    sums = (bias_sum_behind(maker) for maker in makers if maker is not None)
    return next((found for found in sums if found is not None and found.node is node), None)
