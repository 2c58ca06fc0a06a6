"""What a sketch tells of a tensor, as plain numbers: extremes, cuts, moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from bitwright.decide.ranges.entropy import entropy_threshold
from bitwright.numerics.positions import PositionGrid
from bitwright.support.array_types import F32, F64, I64, Array


class Sketch(Protocol):
    """What a range method may ask of a tensor; `bitwright.observe.TensorSketch` has it."""

    low: float
    high: float
    channel_low: F32 | None
    channel_high: F32 | None

    @property
    def finite(self) -> int:
        """How many finite values were seen."""

    @property
    def batches(self) -> F32:
        """One (min, max) row for each batch."""

    @property
    def votes(self) -> Mapping[PositionGrid, Mapping[int, int]]:
        """For how many batches each position of a power-of-two grid was the best."""

    def values(self) -> Array:
        """Return the histogram's values, ascending."""

    def counts(self) -> I64:
        """Return how often each was seen."""


def averaged_extremes(sketch: Sketch, weight: float) -> tuple[float, float]:
    """Return the exponential average of each batch's extremes, the first batch as its start."""
    batches = sketch.batches.astype(np.float64)
    average = batches[0]
    for batch in batches[1:]:
        average = average + weight * (batch - average)
    return float(average[0]), float(average[1])


def mean_extremes(sketch: Sketch) -> tuple[float, float]:
    """Return the mean of the batches' least values, and of their largest."""
    low, high = sketch.batches.mean(axis=0, dtype=np.float64)
    return float(low), float(high)


def percentile_cut(sketch: Sketch, percentile: float, *, symmetric: bool) -> tuple[float, float]:
    """Return between which values this percentage of the mass lies.

    With `symmetric` the magnitudes are cut, else half of the rest is cut off at either end. Never
    beyond the extremes; zero need not lie inside.
    """
    values, counts = sketch_points(sketch)
    if symmetric:
        order = np.argsort(np.abs(values), kind="stable")
        most = _quantile(np.abs(values)[order], counts[order], percentile / 100)
        return max(-most, float(sketch.low)), min(most, float(sketch.high))
    # The part that stays below the upper cut, so that 100 - percentile is split in halves.
    inside = 1 - (100 - percentile) / 200
    return -_quantile(-values[::-1], counts[::-1], inside), _quantile(values, counts, inside)


def entropy_cut(
    sketch: Sketch, bins: int, levels: int, *, symmetric: bool = False
) -> tuple[float, float]:
    """Return the range of the least divergence (see `entropy_threshold`), within the extremes."""
    low, high = float(sketch.low), float(sketch.high)
    if levels >= bins:
        return low, high  # the grid is as fine as the bins: clipping gains nothing
    most = entropy_threshold(*sketch_points(sketch), bins, levels, symmetric=symmetric)
    return max(-most, low), min(most, high)


def moments(values: F64, counts: F64, power: float = 1.0) -> tuple[float, float]:
    """Return mean and standard deviation of sign(x) |x|^power, for values and how often each is."""
    share = counts / max(float(counts.sum()), 1.0)
    # Scaled first: the squares of large float32 values still fit, those of tiny ones would vanish.
    size = float(np.abs(values).max(initial=0.0)) or 1.0
    scaled = np.sign(values) * np.abs(values / size) ** power
    mean = float(scaled @ share)
    deviation = float(np.sqrt(max(float(((scaled - mean) ** 2) @ share), 0.0)))
    return size**power * mean, size**power * deviation


def sketch_points(sketch: Sketch) -> tuple[F64, F64]:
    """Return the values of a sketch, ascending, and how often each was seen, in float64."""
    return sketch.values().astype(np.float64), sketch.counts().astype(np.float64)


def _quantile(values: F64, counts: F64, share: float) -> float:
    """Return the least value that has this share of all at or below it."""
    below = np.cumsum(counts)
    # A trillionth less: 0.9 * 10 must find the ninth value, not the tenth.
    wanted = share * below[-1] * (1 - 1e-12)
    return float(values[min(np.searchsorted(below, wanted), values.size - 1)])
