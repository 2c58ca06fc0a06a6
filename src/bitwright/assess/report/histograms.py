"""Histograms with few bins, encoded as two letters per bin: a report holds thousands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.support.array_types import Array

MAX_BINS = 96
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LEVELS = 64 * 64 - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in bins of equal width over [low, high], all values included."""

    low: float
    high: float
    counts: Array
    finite: int
    """How many values there were."""

    @classmethod
    def of_array(cls, array: Array, *, bins: int = MAX_BINS) -> Histogram | None:
        """Return the histogram of an array's finite values, None if it has none."""
        values = np.asarray(array, np.float64).reshape(-1)
        values = values[np.isfinite(values)]
        if not values.size:
            return None
        low, high = float(values.min()), float(values.max())
        counts = np.histogram(values, bins, _widened(low, high))[0]
        return cls(low, high, counts.astype(np.float64), values.size)

    @classmethod
    def of_bfloat16(
        cls, values: Array, counts: Array, low: float, high: float, *, bins: int = MAX_BINS
    ) -> Histogram | None:
        """Return the histogram of counts at bfloat16 values, as a `TensorSketch` has them.

        Each count is spread over the values that round to its bfloat16: near the ends one bin
        holds one such value and the next one two, and a comb of them would show.
        """
        if not counts.size or not low <= high:
            return None
        edges = np.linspace(*_widened(low, high), bins + 1)
        below, above = _cells(np.asarray(values, np.float64), low, high)
        total = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
        # The cumulative count rises over each cell and is level between them.
        places = np.stack([below, above], axis=1).reshape(-1)
        heights = np.stack([total[:-1], total[1:]], axis=1).reshape(-1)
        at_edges = np.interp(edges, places, heights)
        at_edges[0], at_edges[-1] = 0.0, total[-1]
        return cls(low, high, np.maximum(np.diff(at_edges), 0.0), int(total[-1]))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, packed."""
        peak, text = pack(self.counts)
        return {
            "low": self.low,
            "high": self.high,
            "values": self.finite,
            "peak": peak,
            "bins": text,
        }


def pack(values: Array) -> tuple[float, str]:
    """Return the largest of these non-negative numbers, and all of them as two letters each.

    They are stored by the logarithm of 1 + value, so that the rarest bin shows beside the fullest;
    what is not zero stays so.
    """
    peak = float(np.max(values, initial=0.0))
    if peak <= 0 or not math.isfinite(peak):
        return 0.0, "AA" * values.size
    levels = np.ceil(np.log1p(values) / math.log1p(peak) * _LEVELS).astype(int).clip(0, _LEVELS)
    table = np.frombuffer(_LETTERS.encode(), np.uint8)
    return peak, table[np.stack([levels // 64, levels % 64], axis=1)].tobytes().decode()


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that bins have a width in, also where all values are one."""
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _cells(values: Array, low: float, high: float) -> tuple[Array, Array]:
    """Return where the values that round to each of these bfloat16 begin and end."""
    mantissa, exponent = np.frexp(np.abs(values))
    # All zeros are at zero: a sliver, which belongs to the bin above an edge there.
    outward = np.where(values == 0, np.finfo(np.float64).tiny, np.ldexp(1.0, exponent - 9))
    inward = np.where(mantissa == 0.5, outward / 2, outward)  # below a power of two they are denser
    below = np.where(values > 0, values - inward, np.where(values < 0, values - outward, 0.0))
    above = np.where(values < 0, values + inward, values + outward)
    return np.clip(below, low, high), np.clip(above, low, high)
