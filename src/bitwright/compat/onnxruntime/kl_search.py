"""Entropy calibration: the clipping threshold of least KL divergence, as ONNX Runtime finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["least_divergence", "smooth_counts"]

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

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


def smooth_counts(counts: npt.NDArray[Any], epsilon: float = _EPSILON) -> F32 | None:
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
