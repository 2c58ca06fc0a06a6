"""Rules of hardware as values: what a file of a target can say, one kind of rule a class.

Each rule stands in a file under a name of its own. The planner reads it forward
(`recipe.targeting`: which types, which pairs), `verify` backward
(`assess.verification.target_rules`: what is there, and what is allowed).
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "Activations",
    "AttributeValues",
    "Biases",
    "BlockShape",
    "ChannelAxis",
    "Consequence",
    "ConstantInputs",
    "EqualParameters",
    "EqualTypes",
    "FixedOutput",
    "FixedScale",
    "FloatOperators",
    "Granularity",
    "Group",
    "InputCount",
    "KnownOperators",
    "LastAxis",
    "LowBitProducts",
    "NoOutputType",
    "NodeUnits",
    "OneReader",
    "OpsetOfTypes",
    "OpsetRange",
    "PositiveScales",
    "Rank",
    "RefusedOperators",
    "Residual",
    "Role",
    "Rule",
    "RuleKind",
    "SameScale",
    "SignedWeights",
    "SmallProducts",
    "StaticShapes",
    "TypeName",
    "TypePairs",
    "Types",
    "WeightCodes",
    "WrittenAxis",
    "ZeroPoints",
]

Consequence = Literal["refused", "leaves", "wrong", "float", "slow"]
"""Does not load or build; leaves the accelerator; changes numbers; is computed in float; slow."""

Role = Literal["activation", "weight", "bias"]

TypeName = Literal[
    "int2",
    "uint2",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "float4e2m1",
    "float8e4m3fn",
    "float8e5m2",
    "float8e8m0",
]
"""Types that files of models store; not all are types that this package quantizes to."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all rules have: what follows where one is broken, what to do, and who says so.

    >>> StaticShapes(consequence="leaves", fix="--fix-shape batch=1").consequence
    'leaves'
    """

    consequence: Consequence
    fix: str = ""
    source: str = ""


# Single tensors ------------------------------------------------------------------------------


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


# Operators between pairs ------------------------------------------------------------------------


class NodeUnits(Rule, frozen=True, kw_only=True, tag="node_units"):
    """An operator that reads dequantized values reads no float activation, and only Q reads it."""

    ops: tuple[str, ...]
    float_results: tuple[str, ...] = ()
    """Of these, those that may write float."""


class EqualTypes(Rule, frozen=True, kw_only=True, tag="equal_types"):
    """Activations that an operator reads and writes have one number type."""

    ops: tuple[str, ...]


class EqualParameters(Rule, frozen=True, kw_only=True, tag="equal_parameters"):
    """Operators that only move values have the same scale and zero point before and behind."""

    ops: tuple[str, ...]


class SameScale(Rule, frozen=True, kw_only=True, tag="same_scale"):
    """All inputs of an operator have one scale."""

    ops: tuple[str, ...]


class SignedWeights(Rule, frozen=True, kw_only=True, tag="signed_weights"):
    """Signed activations meet signed weights."""

    ops: tuple[str, ...]


class TypePairs(Rule, frozen=True, kw_only=True, tag="type_pairs"):
    """Types of activations and weights that do not go together."""

    ops: tuple[str, ...]
    activation: tuple[TypeName, ...]
    weight: tuple[TypeName, ...]


class Activations(Rule, frozen=True, kw_only=True, tag="activations"):
    """A Relu or Clip between an operator and its Q is one that the Q makes redundant."""

    ops: tuple[str, ...]
    """The operators before it."""


class FloatOperators(Rule, frozen=True, kw_only=True, tag="float_operators"):
    """Operators that are computed in float, so that pairs around them only cost."""

    ops: tuple[str, ...]


class Group(Rule, frozen=True, kw_only=True, tag="group"):
    """Operators that are computed as one with what reads them: no pair stands between."""

    first: tuple[str, ...]
    then: tuple[str, ...]


class Residual(Rule, frozen=True, kw_only=True, tag="residual"):
    """An Add behind a quantized convolution reads the skip through a pair, and nothing else."""


class SmallProducts(Rule, frozen=True, kw_only=True, tag="small_products"):
    """Products below these sizes are better left float."""

    ops: tuple[str, ...]
    reduction: int = 1
    """Products that are added up for a value (of a group), at least."""
    channels: int = 1
    """Output channels, at least."""


class LowBitProducts(Rule, frozen=True, kw_only=True, tag="low_bit_products"):
    """MatMulNBits: bits, blocks, and what else of it there is a kernel for."""

    bits: tuple[int, ...] = ()
    """None: it is not taken at all."""
    blocks: tuple[int, ...] = ()
    """None: any."""
    group_index: bool = False
    """Whether rows may be in another order (g_idx)."""


# Operators ------------------------------------------------------------------------------------


class KnownOperators(Rule, frozen=True, kw_only=True, tag="known_operators"):
    """The operators that there are; all others leave the accelerator."""

    ops: tuple[str, ...]


class RefusedOperators(Rule, frozen=True, kw_only=True, tag="refused_operators"):
    """Operators that must not be there."""

    ops: tuple[str, ...]


class StaticShapes(Rule, frozen=True, kw_only=True, tag="static_shapes"):
    """Every dimension of every tensor is a number."""


class Rank(Rule, frozen=True, kw_only=True, tag="rank"):
    """How many axes the first input of an operator has."""

    ops: tuple[str, ...]
    low: int = 0
    high: int


class InputCount(Rule, frozen=True, kw_only=True, tag="input_count"):
    """How many inputs an operator has."""

    ops: tuple[str, ...]
    count: int


class ConstantInputs(Rule, frozen=True, kw_only=True, tag="constant_inputs"):
    """Inputs that are constants: shapes, axes, pads."""

    inputs: dict[str, tuple[int, ...]]


class AttributeValues(Rule, frozen=True, kw_only=True, tag="attribute_values"):
    """What an attribute of some operators may be; each number of it, where it has several."""

    ops: tuple[str, ...]
    attribute: str
    values: tuple[int | float | str, ...]


class LastAxis(Rule, frozen=True, kw_only=True, tag="last_axis"):
    """Operators that work along the last axis only."""

    ops: tuple[str, ...]


RuleKind = (
    Types
    | ZeroPoints
    | PositiveScales
    | Granularity
    | ChannelAxis
    | WrittenAxis
    | BlockShape
    | WeightCodes
    | Biases
    | FixedOutput
    | NoOutputType
    | OneReader
    | OpsetOfTypes
    | OpsetRange
    | NodeUnits
    | EqualTypes
    | EqualParameters
    | SameScale
    | SignedWeights
    | TypePairs
    | Activations
    | FloatOperators
    | Group
    | Residual
    | SmallProducts
    | LowBitProducts
    | KnownOperators
    | RefusedOperators
    | StaticShapes
    | Rank
    | InputCount
    | ConstantInputs
    | AttributeValues
    | LastAxis
)
