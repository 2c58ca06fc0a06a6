"""Sizes of products below or above which integers gain nothing, so that they stay float."""

from __future__ import annotations

import msgspec

from bitwright.targets.target import Consequence, TypeName


class _Sizes(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    consequence: Consequence
    fix: str = ""
    source: str = ""


class SmallProducts(_Sizes, frozen=True, kw_only=True, tag="small_products"):
    """Products below these sizes are better left float."""

    ops: tuple[str, ...]
    reduction: int = 1
    """Products that are added up for a value (of a group), at least."""
    channels: int = 1
    """Output channels, at least."""
    rows: int = 1
    """Rows that are multiplied with the weight, at least; 2: no product of a vector."""


class ConvolutionSizes(_Sizes, frozen=True, kw_only=True, tag="convolution_sizes"):
    """Convolutions with fewer channels, or larger kernels, are better left float."""

    types: tuple[TypeName, ...]
    """Of activations."""
    channels: int
    """Input and output channels (of a group), at least."""
    multiple_of: int = 0
    """Not 0: one with fewer channels is taken as well, where its input or output channels are a
    multiple of this and its kernel is square, if it is the first of the model or one side has
    enough channels; one in groups where its output channels are such a multiple and its kernel is
    no smaller than 3."""
    kernel_volume: int = 0
    """Values of a kernel, at most; 0: any number."""


class AttentionSizes(_Sizes, frozen=True, kw_only=True, tag="attention_sizes"):
    """Products of an attention of other sizes are better left float."""

    types: tuple[TypeName, ...]
    """Of activations."""
    length: int = 0
    """Length of the sequence, at most; 0: any."""
    head_low: int = 1
    """Size of a head, at least."""
    head_high: int = 0
    """Size of a head, at most; 0: any."""


SizeRule = AttentionSizes | ConvolutionSizes | SmallProducts
