"""The section of a recipe that fine-tunes weights after all scales are decided."""

from __future__ import annotations

from typing import Literal

from bitwright.errors import RecipeError, did_you_mean
from bitwright.support.settings import Settings

__all__ = ["LEARNING_OPS", "AdaQuant", "AdaRound", "FineTuning", "SignRound"]

LEARNING_OPS = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "InstanceNormalization",
    "LayerNormalization",
    "MatMul",
)
"""Operators whose weights can learn."""


class _Learning(Settings, frozen=True, kw_only=True):
    """The options of all methods: how many steps, on what data, and when to keep the result."""

    iterations: int = 1000
    """Steps for each segment."""
    batch_size: int = 4
    """Samples for each step, chosen anew every time."""
    samples: int | None = None
    """Use at most this many samples; None: all."""
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
    op_types: tuple[str, ...] | None = None
    """Only weights of these operators learn; None: of Conv, ConvTranspose, Gemm, MatMul,
    InstanceNormalization and LayerNormalization."""
    nodes: tuple[str, ...] | None = None
    """Only segments with one of these nodes learn; None: all."""
    sequential: bool = True
    """Each segment reads what those before it, learned already, give. False: what they give when
    quantized plainly, so that no segment waits for another."""
    workers: int | None = 1
    """Processes that learn segments at the same time, where these are not sequential; None: one for
    each core, up to eight. The result does not depend on it."""
    drop_ratio: float = 1.0
    """How much of a segment's input comes from the quantized model, element by element; the rest
    comes from the float model. Where activation scales learn, also how much of each activation in
    the segment is quantized in a step (QDrop); all of it is when errors are measured."""
    learn_activation_scales: bool = False
    """Learn the scale of each activation that a segment is the first to read, before its weights
    and together with them (LSQ). Zero points stay."""
    activation_scale_learning_rate: float = 0.1
    """A step of such a scale's logarithm, falling to 0."""
    output_pairs: bool = False
    """Compare outputs behind their quantizers."""
    early_stop: bool = False
    """Stop when the loss of the last `patience` steps is no better than the best before."""
    patience: int | None = None
    """Steps that early_stop looks at together; None: a tenth of all."""
    selective: bool = True
    """Keep what a segment learned only where the error on held-out samples falls, and the best of
    what it held on the way. False: what it held in the end."""
    holdout_fraction: float = 0.125
    """This part of the samples is kept from learning, to choose by."""
    learning_rate_above: tuple[float, float] | None = None
    """(error, rate): this learning rate where a segment's mean squared error starts above that."""
    seed: int = 1705472343
    """The same seed gives the same model."""

    def __post_init__(self) -> None:
        counts = "iterations batch_size min_segment_weights max_segment_weights samples patience"
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
        for op_type in self.op_types or ():
            if op_type not in LEARNING_OPS:
                hint = did_you_mean(op_type, LEARNING_OPS)
                raise RecipeError(f"weights of {op_type!r} in fine_tune cannot learn.{hint}")
        if not 0 <= self.drop_ratio <= 1:
            raise RecipeError(f"drop_ratio must lie in 0..1, not {self.drop_ratio}.")
        if not 0 <= self.layerwise_fraction <= 1:
            raise RecipeError(
                f"layerwise_fraction of fine_tune must lie in 0..1, not {self.layerwise_fraction}."
            )
        if not 0 <= self.holdout_fraction < 1:
            raise RecipeError(f"holdout_fraction must lie in [0, 1), not {self.holdout_fraction}.")


class AdaRound(_Learning, frozen=True, kw_only=True, tag="adaround", tag_field="method"):
    """Learn which weights to round up and which down (AdaRound); scales stay.

    >>> AdaRound(iterations=200).warm_start
    0.2
    """

    learning_rate: float = 0.1
    """Of Adam."""
    regularization: float = 10.0
    """The strength of the term that drives every weight to one of its two integers, beside an
    error that is 1 where all are at their nearest."""
    beta: tuple[float, float] = (20.0, 2.0)
    """How steep that term is, at first and in the end."""
    warm_start: float = 0.2
    """This part of all steps goes without it."""
    update_bias: bool = True
    """Let biases make up for what is off on average, so that weights need not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.warm_start < 1:
            raise RecipeError(f"warm_start must lie in [0, 1), not {self.warm_start}.")


class AdaQuant(_Learning, frozen=True, kw_only=True, tag="adaquant", tag_field="method"):
    """Learn the float weights that round best (AdaQuant), with their biases and scales.

    >>> AdaQuant().learn_scales is None
    True
    """

    learning_rate: float | None = None
    """In units of the weights. None: a hundredth of each weight's step, falling to 0; the rate of
    learning_rate_above is in steps then, too."""
    update_bias: bool = True
    """Biases learn, too."""
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


FineTuning = AdaRound | AdaQuant | SignRound
