"""A sketch with bins of equal width, for tools that count so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.observe.sketch import F32, I64, TensorSketch

__all__ = ["LinearSketch"]

_HALF = 1 << 14
"""Bins on either side of zero: the widest is an eight-thousandth of the largest value."""


class LinearSketch(TensorSketch):
    """Exact extremes, and a histogram of equal bins that always begins at zero.

    The bins cover [-2^e, 2^e]. When a value lies beyond, two neighbours become one and e grows by
    one: the borders of the coarser bins are borders of the finer ones, so that the order of the
    data makes no difference, and sketches merge by `|` as all do. Coarser than `TensorSketch`
    near zero, finer near the ends.

    >>> sketch = LinearSketch.of([0.0, 1.0], [-4.0])
    >>> sketch.low, sketch.high, sketch.counts()
    (-4.0, 1.0, array([1, 1, 1]))
    """

    __slots__ = ("_bins", "_exponent")

    def __init__(self, *, histogram: bool = True, channel_axis: int | None = None) -> None:
        super().__init__(histogram=False, channel_axis=channel_axis)
        self._bins: I64 = np.zeros(2 * _HALF, np.int64)
        self._exponent = -126

    def update(self, array: npt.NDArray[Any], *, engine: str | None = None) -> None:
        """Add one batch of values."""
        super().update(array, engine=engine)
        flat = np.asarray(array, np.float64).reshape(-1)
        flat = flat[np.isfinite(flat)]
        if flat.size:
            self._cover(int(np.frexp(np.abs(flat).max())[1]))
            self._bins += np.bincount(self._places(flat), minlength=2 * _HALF)

    def __or__(self, other: TensorSketch) -> TensorSketch:
        if not isinstance(other, LinearSketch):
            raise DataError("sketches of different kinds do not merge; observe all alike.")
        merged = super().__or__(other)
        assert isinstance(merged, LinearSketch)
        for part in (self, other):
            twin = LinearSketch()
            twin._bins, twin._exponent = part._bins.copy(), part._exponent
            common = max(merged._exponent, twin._exponent)
            merged._cover(common)
            twin._cover(common)
            merged._bins += twin._bins
        return merged

    def values(self) -> F32:
        """Return the middles of the occupied bins, ascending, none beyond the extremes."""
        used = np.flatnonzero(self._bins)
        middles = (used - _HALF + 0.5) * self._width
        return np.asarray(np.clip(middles, self.low, self.high), np.float32)

    def counts(self) -> I64:
        """Return how often each of `values()` was seen."""
        return self._bins[self._bins > 0]

    def __reduce__(self) -> tuple[Any, ...]:
        raise DataError("linear sketches stay in their process; observe without an engine.")

    @property
    def _width(self) -> float:
        return float(np.ldexp(1.0, self._exponent)) / _HALF

    def _places(self, values: npt.NDArray[np.float64]) -> I64:
        places = np.floor(values / self._width).astype(np.int64) + _HALF
        return np.clip(places, 0, 2 * _HALF - 1)

    def _cover(self, exponent: int) -> None:
        """Make the bins wide enough for values up to 2^exponent."""
        while self._exponent < exponent:
            if not self._bins.any():
                self._exponent = exponent
                return
            pairs = self._bins.reshape(-1, 2).sum(axis=1)
            self._bins = np.zeros(2 * _HALF, np.int64)
            self._bins[_HALF // 2 : _HALF + _HALF // 2] = pairs
            self._exponent += 1
