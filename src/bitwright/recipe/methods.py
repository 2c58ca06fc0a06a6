"""Range methods: how the range of a tensor is chosen from what was observed."""

from __future__ import annotations

from typing import Literal

from bitwright.errors import RecipeError
from bitwright.support.settings import Settings

__all__ = [
    "MSE",
    "Distribution",
    "Entropy",
    "LayerwisePercentile",
    "MeanExtremes",
    "MinMSE",
    "MinMax",
    "NonOverflow",
    "Percentile",
    "RangeMethod",
    "ScaleKind",
]


class _Method(Settings, frozen=True, kw_only=True):
    """A method that chooses the range of a tensor from what was observed."""

    symmetric: bool = False
    """Widen the range to [-m, m]; the zero point still follows the recipe's symmetry."""


class MinMax(_Method, frozen=True, kw_only=True, tag="minmax", tag_field="method"):
    """The whole observed range: nothing is clipped.

    >>> MinMax(moving_average=0.01).moving_average
    0.01
    """

    moving_average: float | None = None
    """Weight of each new batch in an exponential average of batch extremes."""
    per_channel: bool = False
    """One range for each channel (axis 1) of an activation."""

    def __post_init__(self) -> None:
        if self.moving_average is not None and not 0 < self.moving_average <= 1:
            raise RecipeError(
                f"moving_average must lie in (0, 1], not {self.moving_average}; 0.01 is usual."
            )


class MeanExtremes(_Method, frozen=True, kw_only=True, tag="mean-extremes", tag_field="method"):
    """From the mean of each batch's least value to that of its largest.

    One odd sample moves an end by its share of the samples only.

    >>> MeanExtremes(symmetric=True).symmetric
    True
    """


class Percentile(_Method, frozen=True, kw_only=True, tag="percentile", tag_field="method"):
    """Clip the rarest values: `percentile` of the mass stays inside, half of the rest each side.

    >>> Percentile(percentile=99.99).percentile
    99.99
    """

    percentile: float = 99.999
    """So many percent of the values stay inside."""

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise RecipeError(f"percentile must lie in (0, 100], not {self.percentile}.")


class LayerwisePercentile(
    _Method, frozen=True, kw_only=True, tag="layerwise-percentile", tag_field="method"
):
    """The percentile, of a few candidates, with the smallest error on each tensor.

    >>> LayerwisePercentile().candidates
    (99.99, 99.999, 99.99999)
    """

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    """Percentiles to choose from."""
    metric: Literal["mae", "mse"] = "mae"
    """The error: mean absolute or mean squared."""

    def __post_init__(self) -> None:
        if not self.candidates:
            raise RecipeError("layerwise-percentile needs candidates to choose from.")
        for percentile in self.candidates:
            if not 0 < percentile <= 100:
                raise RecipeError(f"candidates must lie in (0, 100], not {percentile}.")


class Entropy(_Method, frozen=True, kw_only=True, tag="entropy", tag_field="method"):
    """The range whose quantized distribution is nearest the observed one (KL divergence).

    >>> Entropy(bins=1024).levels
    128
    """

    bins: int = 2048
    """Of the histogram that is searched."""
    levels: int = 128
    """Values of the quantized distribution."""
    guarded: bool = True
    """Clip only where the squared error falls: the divergence does not see how large the rare
    values are, which are all that a detector has found."""

    def __post_init__(self) -> None:
        if self.levels < 2 or self.bins < 2 * self.levels:
            raise RecipeError(
                f"entropy needs bins >= 2 * levels >= 4, not bins={self.bins}, "
                f"levels={self.levels}; with fewer there is nothing to search."
            )


class Distribution(_Method, frozen=True, kw_only=True, tag="distribution", tag_field="method"):
    """Standard deviation of the values, for float8 scales.

    >>> Distribution().symmetric
    False
    """


class MSE(_Method, frozen=True, kw_only=True, tag="mse", tag_field="method"):
    """The range with the least squared error after quantization.

    >>> MSE(symmetric=True).symmetric
    True
    """


class NonOverflow(_Method, frozen=True, kw_only=True, tag="non-overflow", tag_field="method"):
    """The finest power-of-two scale that clips nothing.

    >>> NonOverflow().symmetric
    False
    """


class MinMSE(_Method, frozen=True, kw_only=True, tag="min-mse", tag_field="method"):
    """The power-of-two scale with the least squared error.

    >>> MinMSE(mode="most-common").mode
    'most-common'
    """

    mode: Literal["all", "most-common"] = "all"
    """Over all data at once, or the scale that is best for most batches."""


RangeMethod = (
    MinMax
    | MeanExtremes
    | Percentile
    | LayerwisePercentile
    | Entropy
    | Distribution
    | MSE
    | NonOverflow
    | MinMSE
)

ScaleKind = Literal["float", "power-of-two", "int16"]
