"""Integers for groups of consecutive values, in float64: one scale and zero point a group.

The plain rule of weight-only quantization, for any array and any group length. Weights of a model
are quantized by `bitwright.numerics.blocks`, which knows what operators can store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError, ModelError, RecipeError

__all__ = ["QuantizedGroups", "magnitude_shares", "quantize_groups"]

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedGroups:
    """Codes [groups, length] with a scale and a zero point [groups, 1]; all of them floats."""

    codes: F64
    scales: F64
    zero_points: F64

    def dequantize(self) -> F64:
        """Return the values that the codes stand for, [groups, length]."""
        return self.scales * (self.codes - self.zero_points)


def quantize_groups(
    values: npt.ArrayLike,
    *,
    bits: int = 4,
    length: int = 32,
    symmetric: bool = False,
    signed: bool = False,
    bounded: bool = True,
    ratio: float = 1.0,
) -> QuantizedGroups:
    """Return groups of `length` consecutive values as integers of so many bits.

    A symmetric scale spreads the codes over twice the largest magnitude; codes lie around zero
    (`signed`) or around the middle. Otherwise they are spread from the smallest to the largest
    value. A `bounded` zero point is one of the codes, so that ranges are widened to hold zero;
    without it the range may lie anywhere. `ratio` is the part of the range that is kept.

    >>> found = quantize_groups([-1, -0.3, 0.2, 0.7], length=4)
    >>> found.codes.tolist(), found.zero_points.tolist()
    ([[0.0, 6.0, 11.0, 15.0]], [[9.0]])
    """
    if isinstance(bits, bool) or bits not in range(1, 9):
        raise RecipeError(f"groups have 1 to 8 bits, not {bits!r}.")
    if not 0 < ratio <= 1:
        raise RecipeError(f"the part of a range that is kept lies in (0, 1], not {ratio!r}.")
    groups = _in_groups(values, length)
    if not np.isfinite(groups).all():
        raise ModelError("the weight holds NaN or infinity; mend the model or leave it float.")
    low = groups.min(axis=1, keepdims=True) * ratio
    high = groups.max(axis=1, keepdims=True) * ratio
    lowest = -(1 << bits - 1) if signed and symmetric else 0
    steps = (1 << bits) - 1
    if symmetric:
        size = np.maximum(np.abs(low), np.abs(high))
        scales = np.where(size > 0, 2 * size / steps, 1.0)
        zeros = np.full_like(scales, 0 if signed else 1 << bits - 1)
    else:
        # The range of a constant begins or ends at zero: without a width it would have no scale.
        widened = np.full(low.shape, True) if bounded else low == high
        low, high = (
            np.where(widened, np.minimum(low, 0), low),
            np.where(widened, np.maximum(high, 0), high),
        )
        scales = np.where(high > low, (high - low) / steps, 1.0)
        zeros = np.rint(-low / scales)
    codes = np.clip(np.rint(groups / scales + zeros), lowest, lowest + steps)
    return QuantizedGroups(codes, scales, zeros)


def magnitude_shares(weights: npt.ArrayLike, length: int = -1) -> F64:
    """Return how much of its group's largest magnitude each value of a row takes, over all rows.

    >>> magnitude_shares([[1, 2, 3, 4], [4, 4, 2, 1]], 2).tolist()
    [0.75, 1.0, 0.875, 0.75]
    """
    array = np.abs(np.asarray(weights, np.float64))
    length = array.shape[-1] if length == -1 else length
    groups = _in_groups(array, length)
    largest = groups.max(axis=1, keepdims=True)
    shares = groups / np.where(largest > 0, largest, 1)
    return np.asarray(shares.reshape(array.shape).mean(axis=0))


def _in_groups(values: npt.ArrayLike, length: int) -> F64:
    array: npt.NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "fiuV":
        raise DataError(f"a weight holds numbers, not {array.dtype}.")
    array = array.astype(np.float64)
    if isinstance(length, bool) or length < 1:
        raise RecipeError(f"a group has at least one value, not {length!r}.")
    if not array.size or array.size % length:
        raise RecipeError(
            f"{array.size} values do not make whole groups of {length}; pad them first, or choose "
            "another group size."
        )
    return array.reshape(-1, length)
