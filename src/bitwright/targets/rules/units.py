"""Rules about operators between pairs: units, types that meet, groups, products in blocks."""

from __future__ import annotations

import msgspec

from bitwright.targets.rules.rule import Rule, TypeName

__all__ = [
    "Activations",
    "BlockedProducts",
    "EqualParameters",
    "EqualTypes",
    "FloatOperators",
    "Group",
    "LowBitProducts",
    "NodeUnits",
    "QuantizedReaders",
    "Residual",
    "SameScale",
    "SignedWeights",
    "TransposedWeights",
    "TypePairs",
    "Unquantized",
    "WholeUnits",
]


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
    attributes: dict[str, str | int] = msgspec.field(default_factory=dict)
    """Only of nodes with these attributes; what is not written has ONNX's default."""


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


class LowBitProducts(Rule, frozen=True, kw_only=True, tag="low_bit_products"):
    """MatMulNBits: bits, blocks, and what else of it there is a kernel for."""

    bits: tuple[int, ...] = ()
    """None: it is not taken at all."""
    blocks: tuple[int, ...] = ()
    """None: any."""
    group_index: bool = False
    """Whether rows may be in another order (g_idx)."""
    float_zero_points: bool = False
    """Whether zero points may be floats."""
    levels: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Bits -> the accuracy levels that there are kernels for; all others are unpacked first."""
    blocks_of: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Bits -> their blocks, where these are fewer."""


class BlockedProducts(Rule, frozen=True, kw_only=True, tag="blocked_products"):
    """Weights with scales of blocks, beside activations of some types only."""

    ops: tuple[str, ...]
    """The operators that read such weights."""
    activation: tuple[TypeName, ...]
    """The types of what they read and write beside them."""
    multiples: dict[str, int]
    """Type of the weight -> what sizes of its blocks are multiples of."""


class WholeUnits(Rule, frozen=True, kw_only=True, tag="whole_units"):
    """Weights of these types are read beside quantized activations, not beside float ones."""

    types: tuple[TypeName, ...]


class TransposedWeights(Rule, frozen=True, kw_only=True, tag="transposed_weights"):
    """Weights of these types are stored as (outputs, inputs), and transposed by who reads them."""

    types: tuple[TypeName, ...]


class QuantizedReaders(Rule, frozen=True, kw_only=True, tag="quantized_readers"):
    """What these operators write is quantized for readers that compute on integers only."""

    ops: tuple[str, ...]
    readers: tuple[str, ...]
    """Those; what moves values passes them on."""


class Unquantized(Rule, frozen=True, kw_only=True, tag="unquantized"):
    """These operators have pairs: without them they are computed in float."""

    ops: tuple[str, ...]
