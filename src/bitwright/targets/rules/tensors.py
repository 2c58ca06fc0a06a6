"""Rules about single tensors: types, zero points, scales, blocks, biases, opsets."""

from __future__ import annotations

from typing import Literal

import msgspec

from bitwright.targets.rules.rule import Role, Rule, TypeName

__all__ = [
    "Biases",
    "BlockShape",
    "ChannelAxis",
    "FixedOutput",
    "FixedScale",
    "Granularity",
    "NestedScales",
    "NoOutputType",
    "OneReader",
    "OpsetOfTypes",
    "OpsetRange",
    "OutputRange",
    "PositiveScales",
    "StoredWeights",
    "Types",
    "UnmixedTypes",
    "WeightCodes",
    "WrittenAxis",
    "ZeroPoints",
]


class Types(Rule, frozen=True, kw_only=True, tag="types"):
    """The number types of activations, weights or biases; the first is the usual one."""

    role: Role
    types: tuple[TypeName, ...]
    ops: tuple[str, ...] = ()
    """Only what these operators read; none: all."""


class ZeroPoints(Rule, frozen=True, kw_only=True, tag="zero_points"):
    """Where the zero points of some types may lie: at 0, at the lowest value, in the middle."""

    role: Role
    at: tuple[Literal["zero", "lowest", "middle"], ...]
    types: tuple[TypeName, ...] = ()
    """Only of these types; none: of all."""
    several: bool = False
    """Only where there are several scales, one for each channel or block."""


class PositiveScales(Rule, frozen=True, kw_only=True, tag="positive_scales"):
    """Scales of constants are above zero, as those of activations are on every target."""


class Granularity(Rule, frozen=True, kw_only=True, tag="granularity"):
    """What has a scale of its own: the tensor, each channel, each block."""

    role: Role
    per: tuple[Literal["tensor", "channel", "block"], ...]
    ops: tuple[str, ...] = ()
    """Only what these operators read; none: all."""
    types: tuple[TypeName, ...] = ()


class ChannelAxis(Rule, frozen=True, kw_only=True, tag="channel_axis"):
    """Scales of channels lie along the output channels of the operator that reads the weight."""


class WrittenAxis(Rule, frozen=True, kw_only=True, tag="written_axis"):
    """Pairs with several scales say their axis, also where it is ONNX's default."""


class BlockShape(Rule, frozen=True, kw_only=True, tag="block_shape"):
    """Blocks: their sizes, whether they divide the axis, whether the last axis is even."""

    types: tuple[TypeName, ...]
    sizes: tuple[int, ...] = ()
    """None: any."""
    multiple_of: int = 1
    whole: bool = True
    """The size divides the axis."""
    even_last_axis: bool = False
    """Two values share a byte, so that the last axis has to be even."""
    last_axes: int = 0
    """Blocks lie along one of this many last axes; 0: along any."""


class WeightCodes(Rule, frozen=True, kw_only=True, tag="weight_codes"):
    """The range that stored integers of weights lie in."""

    types: tuple[TypeName, ...]
    low: int
    high: int


class Biases(Rule, frozen=True, kw_only=True, tag="biases"):
    """Biases are float, or int32 at the zero point 0 and the scale of input times weight."""

    form: Literal["float", "int32"]
    rtol: float = 1e-3
    """How far the scale may be off."""
    zero_point_input: bool = True
    """False: the dequantizer of a bias has no third input at all."""


class FixedScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scale and a zero point that hardware takes, whatever the file says.

    >>> FixedScale(scale=2**-16, zero_point=0).zero_point
    0
    """

    scale: float
    zero_point: int


class FixedOutput(Rule, frozen=True, kw_only=True, tag="fixed_output"):
    """Operators whose results have a scale that is known before, for each number type."""

    ops: tuple[str, ...]
    scales: dict[str, FixedScale]
    """Name of the number type -> what its scale and zero point have to be."""
    rtol: float = 1e-4


class NoOutputType(Rule, frozen=True, kw_only=True, tag="no_output_type"):
    """Quantizers of these types have no attribute `output_dtype`."""

    types: tuple[TypeName, ...]


class OneReader(Rule, frozen=True, kw_only=True, tag="one_reader"):
    """Quantized activations of these types have just one reader."""

    types: tuple[TypeName, ...]


class OpsetOfTypes(Rule, frozen=True, kw_only=True, tag="opset_of_types"):
    """The opset of the model is at least this one where it stores values of these types."""

    types: tuple[TypeName, ...]
    opset: int


class OpsetRange(Rule, frozen=True, kw_only=True, tag="opset_range"):
    """The opset of the model lies between these."""

    low: int
    high: int


class OutputRange(Rule, frozen=True, kw_only=True, tag="output_range"):
    """Operators whose quantized results begin at a number: at 0 behind a Relu."""

    ops: tuple[str, ...]
    low: float


class NestedScales(Rule, frozen=True, kw_only=True, tag="nested_scales"):
    """Scales of blocks that are stored in few bits: a dequantizer of their own makes them."""

    types: tuple[TypeName, ...]
    """Of weights of these types."""
    scale_types: tuple[TypeName, ...]
    """What the scales are stored as."""
    per: Literal["tensor", "channel"]
    """What the scales of the scales are of."""
    ops: tuple[str, ...]
    """The operators that read such weights."""
    required: bool = False
    """Whether weights of these types have such scales always."""


class StoredWeights(Rule, frozen=True, kw_only=True, tag="stored_weights"):
    """Weights of these types are stored as such, and not quantized in the model."""

    types: tuple[TypeName, ...]


class UnmixedTypes(Rule, frozen=True, kw_only=True, tag="unmixed_types"):
    """A model has activations of one of these types, and not of several."""

    types: tuple[TypeName, ...]
