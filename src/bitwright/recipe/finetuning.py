"""The section of a recipe that fine-tunes weights after all scales are decided."""

from __future__ import annotations

from typing import Literal

from bitwright.errors import RecipeError
from bitwright.support.settings import Settings

__all__ = ["AdaQuant", "AdaRound", "FineTuning", "SignRound"]


class _Learning(Settings, frozen=True, kw_only=True):
    """The options of all methods: how many steps, on what data, and what learns together."""

    iterations: int = 1000
    """Steps for each segment."""
    batch_size: int = 4
    """Samples for each step, chosen anew every time."""
    scope: Literal["segment", "layer"] = "segment"
    """What learns together: all weights between two places that a single tensor crosses, such as a
    residual block or half a transformer layer; or each layer by itself."""
    layerwise_fraction: float = 0.75
    """This part of all steps is for each weight by itself, one after the other: from second moments
    of what its layer reads, which is far faster, and a good start for learning together. AdaRound
    finds most layers' roundings from these without a step."""
    min_segment_weights: int = 1
    """Consecutive segments are joined while they have no more weights than this together."""
    max_segment_weights: int = 8
    """Segments with more weights than this are cut further: first where skip connections are
    longest, such as those from a backbone to a neck."""
    nodes: tuple[str, ...] | None = None
    """Only segments with one of these nodes learn; None: all."""
    sequential: bool = True
    """Each segment reads what those before it, learned already, give. False: what they give when
    quantized plainly, so that no segment waits for another."""
    workers: int | None = 1
    """Processes that learn segments at the same time, where these are not sequential; None: one for
    each core, up to eight. The result does not depend on it."""

    def __post_init__(self) -> None:
        counts = "iterations batch_size min_segment_weights max_segment_weights"
        for name in (*counts.split(), "workers"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise RecipeError(f"{name} of fine_tune must be at least 1.")
        if self.min_segment_weights > self.max_segment_weights:
            raise RecipeError(
                f"min_segment_weights of fine_tune, {self.min_segment_weights}, is above "
                f"max_segment_weights, {self.max_segment_weights}."
            )
        if self.sequential and self.workers != 1:
            raise RecipeError(
                "segments that wait for those before them cannot be spread over workers; set "
                "sequential=False with workers."
            )
        if not 0 <= self.layerwise_fraction <= 1:
            raise RecipeError(
                f"layerwise_fraction of fine_tune must lie in 0..1, not {self.layerwise_fraction}."
            )


class _WithActivations(_Learning, frozen=True, kw_only=True):
    """The options of methods for models whose activations are quantized, too."""

    learn_activation_scales: bool = False
    """Learn the scale of each activation that a segment is the first to read, before its weights
    and together with them (LSQ). Zero points stay."""
    activation_scale_learning_rate: float = 0.1
    """A step of such a scale's logarithm, falling to 0."""


class AdaRound(_WithActivations, frozen=True, kw_only=True, tag="adaround", tag_field="method"):
    """Learn which weights to round up and which down (AdaRound); scales stay.

    >>> AdaRound(iterations=200).learning_rate
    0.1
    """

    learning_rate: float = 0.1
    """Of Adam."""


class AdaQuant(_WithActivations, frozen=True, kw_only=True, tag="adaquant", tag_field="method"):
    """Learn the float weights that round best (AdaQuant), with their biases and scales.

    >>> AdaQuant().learn_scales is None
    True
    """

    learning_rate: float | None = None
    """In units of the weights. None: a hundredth of each weight's step, falling to 0; the rate of
    learning_rate_above is in steps then, too."""
    learn_scales: bool | None = None
    """Learn the scales of weights (LSQ); None: where scales are not powers of two."""
    scale_learning_rate: float = 1e-4
    """A step of a scale's logarithm."""


class SignRound(_Learning, frozen=True, kw_only=True, tag="signround", tag_field="method"):
    """Learn roundings and the ranges of blocks by the signs of gradients (SignRound, AutoRound).

    For weight-only recipes, of 2 and 3 bits above all. Learning starts from what the recipe's own
    rounding left.

    >>> SignRound().iterations
    200
    """

    iterations: int = 200
    batch_size: int = 8
    layerwise_fraction: float = 0.0
    min_segment_weights: int = 7
    """As many as a decoder's layer has: q, k, v, o, gate, up and down."""
    learning_rate: float | None = None
    """A step of a rounding, in steps of its weight's scale, falling to 0. None: 1 / iterations, so
    that no rounding moves by more than half a step."""
    range_learning_rate: float | None = None
    """A step of the lower and of the upper end of a block's range, as a part of it, falling to 0.
    None: that of roundings."""
    learn_activation_scales = False
    activation_scale_learning_rate = 0.0


FineTuning = AdaRound | AdaQuant | SignRound
