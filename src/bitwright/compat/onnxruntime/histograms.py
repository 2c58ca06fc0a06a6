"""Histograms with bins of equal width, as ONNX Runtime's calibrators count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.observe.sketch import TensorSketch
from bitwright.support.array_types import I64

__all__ = ["EqualBins", "MagnitudeBins", "Magnitudes", "percentile_edges"]

Array = npt.NDArray[Any]

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
