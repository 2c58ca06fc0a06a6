"""Histograms with bins of equal width, as ONNX Runtime's calibrators count them and clip them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.observe.sketch import TensorSketch
from bitwright.support.array_types import F32, I64, Array

_MAX_BINS = 1 << 15
"""Bins beyond which neighbours are joined: the search of a threshold takes their square."""


class EqualBins(TensorSketch):
    """Exact extremes, and counts in equal bins over [-reach, reach].

    The reach has to be known before the first value comes, so this takes a pass of its own;
    `widen` makes room for more. Edges have the type of the tensor, and every value falls where
    `np.histogram` puts it.
    """

    __slots__ = ("_reach", "hist")

    def __init__(self, bins: int, reach: float, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(histogram=False)
        self.hist: I64 = np.zeros(bins, np.int64)
        self._reach: Any = np.array(reach, dtype)[()]

    @property
    def edges(self) -> Array:
        """The borders of the bins, one more than there are bins."""
        return np.histogram_bin_edges(np.empty(0, self._reach.dtype), self.hist.size, self._range)

    def update(self, array: Array, *, engine: str | None = None) -> None:
        """Count one batch of values; those beyond the reach are left out."""
        super().update(array, engine=engine)
        self.hist += np.histogram(array, self.hist.size, self._range)[0]

    def widen(self, reach: float) -> None:
        """Make room for values up to `reach`: bins of the same width are added at both ends."""
        if reach <= self._reach:
            return
        if self._reach == 0:  # nothing but zeros so far: they stay in the middle
            self._reach = np.array(reach, self._reach.dtype)[()]
            return
        while True:
            width = 2 * self._reach / self.hist.size
            more = int(max(reach - self._reach, 0) // width + 1)
            if self.hist.size + 2 * more <= _MAX_BINS:
                break
            self._join()
        self.hist = np.pad(self.hist, more)
        self._reach = more * width + self._reach

    def _join(self) -> None:
        """Make every two bins one, or every three where zero lies in the middle of a bin."""
        factor = 3 if self.hist.size % 2 else 2
        missing = next(n for n in range(0, 6, 2) if (self.hist.size + n) % (2 * factor) in (0, 3))
        self._reach = self._reach * ((self.hist.size + missing) / self.hist.size)
        self.hist = np.pad(self.hist, missing // 2).reshape(-1, factor).sum(axis=1)

    def __or__(self, other: TensorSketch) -> TensorSketch:
        raise DataError("counts in given bins do not merge; update one sketch with all the data.")

    @property
    def _range(self) -> tuple[Any, Any]:
        return -self._reach, self._reach


class MagnitudeBins(TensorSketch):
    """Exact extremes, and counts of |x| in equal bins over [low, high], which `widen` extends."""

    __slots__ = ("edges", "hist")

    def __init__(
        self, bins: int, low: float, high: float, dtype: npt.DTypeLike = np.float32
    ) -> None:
        super().__init__(histogram=False)
        ends = np.array([low, high], dtype)
        self.edges: Array = np.histogram_bin_edges(ends, bins)
        self.hist: I64 = np.zeros(bins, np.int64)

    def update(self, array: Array, *, engine: str | None = None) -> None:
        """Count one batch of values; those below the first edge count in the first bin."""
        super().update(array, engine=engine)
        sizes = np.abs(array[np.isfinite(array)])
        self.hist += np.histogram(np.clip(sizes, self.edges[0], self.edges[-1]), self.edges)[0]

    def widen(self, high: float) -> None:
        """Make room for magnitudes up to `high`, with bins of the same width."""
        if high <= self.edges[-1]:
            return
        width = self.edges[1] - self.edges[0]
        while (high - self.edges[0]) / width > _MAX_BINS:
            if self.hist.size % 2:
                self.hist, self.edges = self._with([self.edges[-1] + width])
            self.hist, self.edges = self.hist.reshape(-1, 2).sum(axis=1), self.edges[::2]
            width = self.edges[1] - self.edges[0]
        more: Array = np.arange(self.edges[-1] + width, high + width, width)
        self.hist, self.edges = self._with(more)

    def _with(self, more: npt.ArrayLike) -> tuple[I64, Array]:
        """Return the counts and edges with empty bins up to these edges."""
        edges = np.append(self.edges, np.asarray(more, self.edges.dtype))
        return np.pad(self.hist, (0, edges.size - self.edges.size)), edges

    __or__ = EqualBins.__or__


class Magnitudes(TensorSketch):
    """The least and the largest |x| of a tensor."""

    __slots__ = ()

    def update(self, array: Array, *, engine: str | None = None) -> None:
        """Add the magnitudes of one batch of values."""
        super().update(np.abs(array), engine=engine)


def percentile_edges(counts: I64, percentile: float, *, symmetric: bool) -> tuple[int, int]:
    """Return the edges of a histogram between which this percentage of its counts lies.

    Both are the lower edges of the bins that the percentiles fall into, as ONNX Runtime's
    calibrator takes them. With `symmetric` the counts are those of magnitudes, and the edge of
    the upper end is returned twice.
    """
    share = np.cumsum(counts / max(int(counts.sum()), 1))
    if symmetric:
        edge = int(np.searchsorted(share, percentile / 100))
        return edge, edge
    cut = (100.0 - percentile) / 200.0
    return int(np.searchsorted(share, cut)), int(np.searchsorted(share, 1.0 - cut))


_EPSILON = 1e-4


def least_divergence(
    histogram: I64, levels: int, dtype: npt.DTypeLike = np.float32
) -> tuple[int, int]:
    """Return which edges of a histogram around zero to clip at, by Kullback-Leibler divergence.

    The same method as `bitwright.decide.ranges.entropy`, without its bound on what is clipped,
    and with every step as ONNX Runtime's calibrator takes it, so that its answer comes out: all
    thresholds from `levels` bins up are tried; a group's mean is a whole number and goes to all its
    bins, also to empty ones; bins that do not fill a group are left out; all in float32, with the
    divergence rounded to the tensor's type. `bitwright.decide.ranges.entropy` clips with more care.
    """
    bins = histogram.size
    middle = bins // 2
    reaches = range(levels // 2, middle + 1)
    if not reaches or bins < levels:
        return 0, bins  # the grid is as fine as the bins: clipping gains nothing
    running = np.concatenate([[0], np.cumsum(histogram)])
    found = []
    for reach in reaches:
        start, end = middle - reach, min(middle + reach + 1, bins)
        clipped = histogram[start:end].copy()
        clipped[0] += running[start]
        clipped[-1] += running[-1] - running[end]
        merged = _merge(clipped, running[start : end + 1], levels)
        found.append(_divergence(clipped, merged))
    best = middle - reaches[int(np.argmin(np.array(found, dtype)))]
    return best, min(2 * middle - best + 1, bins)


def _merge(clipped: I64, running: I64, levels: int) -> I64:
    """Return the counts after groups of bins became one level each and were spread again.

    `running` are the sums of the counts before those outside were added at the ends.
    """
    size = clipped.size // levels
    borders = np.arange(levels + 1) * size
    sums = np.diff(running[borders])
    sums[-1] += running[-1] - running[borders[-1]]
    grouped = clipped[: levels * size].reshape(levels, size)
    used = np.count_nonzero(grouped, axis=1)
    means = np.where(used > 0, sums // np.maximum(used, 1), 0)
    merged = np.zeros_like(clipped)
    merged[: levels * size] = np.repeat(means, size)
    return merged


def _divergence(counts: I64, other: I64) -> Any:
    """Return KL(counts || other) of the two as distributions, none of whose bins is empty."""
    p, q = smooth_counts(counts), smooth_counts(other)
    if p is None or q is None:
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    return (p * np.log(p / q)).sum()


def smooth_counts(counts: Array, epsilon: float = _EPSILON) -> F32 | None:
    """Return counts with `epsilon` in every empty bin, taken from the others.

    None where there is nothing to take it from.
    """
    empty = counts == 0
    number = int(np.count_nonzero(empty))
    if number == counts.size:
        return None
    taken = epsilon * number / (counts.size - number)
    smoothed = counts.astype(np.float32)
    smoothed += np.where(empty, np.float32(epsilon), np.float32(-taken))
    return smoothed if smoothed.min() > 0 else None
