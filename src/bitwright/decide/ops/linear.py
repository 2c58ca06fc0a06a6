"""Linear nodes, y = W x + b with a constant W: which numbers of it belong to which channels."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS
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
