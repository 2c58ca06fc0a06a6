"""Scale and zero point formulas: from a range of real numbers to the grid that covers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError, RecipeError
from bitwright.numerics.types import UINT8, QType
from bitwright.support.array_types import Array


def affine_parameters(
    rmin: npt.ArrayLike,
    rmax: npt.ArrayLike,
    qtype: QType,
    *,
    symmetric: bool = False,
    reduced: bool = False,
    min_real_range: float | None = None,
    kind: Literal["float", "power-of-two", "int16"] = "float",
    dtype: npt.DTypeLike = np.float32,
) -> tuple[Array, Array]:
    """Return the scale (of `dtype`) and the zero point (int64) that cover each range.

    Ranges may have any shape: one number for a tensor, a vector for channels, an array for
    blocks. Every range is widened to contain 0, and 0 is always exactly representable. A range
    too narrow for a normal number of `dtype` gets scale 1.

    `kind` restricts the scales: "power-of-two" takes the smallest power of two with which nothing
    is clipped, where the zero point may lie anywhere; "int16" takes the nearest M / 2**N (see
    `nearest_int16_scale`), or the next larger one where that would cut off more than a level.
    """
    qmin, qmax = qtype.bounds(symmetric=symmetric, reduced=reduced)
    stored = np.dtype(dtype)
    low, high = _widened(rmin, rmax, min_real_range)
    if kind == "power-of-two":
        return _covering_power_of_two(low, high, qmin, qmax, stored, symmetric=symmetric)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    # Divided before they are added: high - low may overflow even float64.
    exact = high / (qmax - qmin) - low / (qmax - qmin)
    degenerate = exact < scale_limits(stored)[0]
    exact = np.where(degenerate, 1.0, exact)
    if kind == "int16":
        exact = _covering_int16_scale(exact, qmax - qmin)
    elif kind != "float":
        raise RecipeError(f"unknown scale kind {kind!r}. Known: float, int16, power-of-two.")
    scale = np.minimum(exact, scale_limits(stored)[1]).astype(stored)
    if symmetric:
        zero_point = np.full(low.shape, middle_of(qmin, qmax), np.int64)
    else:
        # The runtime divides by the stored scale, which counts where it is rounded to float16.
        # Rounding to float32 only decides ties: by the exact scale all [-m, m] have one middle.
        divisor = scale if stored.itemsize < 4 else np.minimum(exact, scale_limits(stored)[1])
        # A scale below the exact one (a saturated one) would put the zero point outside the type.
        zero_point = np.clip(np.rint(qmin - low / divisor.astype(np.float64)), qmin, qmax)
        zero_point = np.where(degenerate, np.int64(0), zero_point.astype(np.int64))
    return scale, zero_point


def without_last_level(
    low: float, high: float, qtype: QType, *, symmetric: bool
) -> tuple[float, float]:
    """Return a range known by definition as a power-of-two scale should cover it.

    To reach 1 itself would take twice the scale, and a bit of every other value: the last level is
    left out, as the tools for such hardware do.

    >>> from bitwright.numerics.types import INT8
    >>> without_last_level(0.0, 1.0, INT8, symmetric=True)
    (0.0, 0.9921875)
    """
    part = 1 - 2.0 ** -(qtype.bits - symmetric)
    return low * part, high * part


def _covering_power_of_two(
    low: Array, high: Array, qmin: int, qmax: int, stored: np.dtype[Any], *, symmetric: bool
) -> tuple[Array, Array]:
    """Return the smallest power-of-two scale, and a zero point, with which nothing is clipped.

    Both ends of the range lie between the values that `qmin` and `qmax` stand for; with half the
    scale one of them would not, wherever the zero point. Of an unsigned type the positive side of
    a symmetric range has a level less than the negative one, and is given its due.
    """
    middle = middle_of(qmin, qmax)
    if symmetric:
        above = max(qmax - middle, 1)  # a grid of 0 and 1 has no level above its middle
        exact = np.maximum(-low / (middle - qmin), high / above)
    else:
        exact = high / (qmax - qmin) - low / (qmax - qmin)
    degenerate = exact < scale_limits(stored)[0]
    exact = np.where(degenerate, 1.0, exact)
    scale = ceil_power_of_two(exact)
    largest = float(np.ldexp(0.5, np.frexp(scale_limits(stored)[1])[1]))
    if symmetric:
        scale = np.minimum(scale, largest).astype(stored)
        return scale, np.full(low.shape, middle, np.int64)
    # Dividing by a power of two is exact. Zero lies on a level, so that either side needs whole
    # levels; where these are one more than there are, twice the scale has room for all.
    levels = np.ceil(-low / scale) + np.ceil(high / scale)
    scale = np.minimum(np.where(levels > qmax - qmin, 2 * scale, scale), largest)
    first = np.clip(qmin + np.ceil(-low / scale), qmin, qmax)
    last = np.clip(qmax - np.ceil(high / scale), first, qmax)
    # The room that is left is shared out as the range itself is: [-m, m] has zero in the middle.
    wanted = np.rint(qmin - low / exact)
    zero_point = np.clip(wanted, first, last).astype(np.int64)
    return scale.astype(stored), np.where(degenerate, np.int64(0), zero_point)


def restricted_asymmetric_parameters(
    rmin: npt.ArrayLike,
    rmax: npt.ArrayLike,
    dtype: npt.DTypeLike = np.float32,
    *,
    min_real_range: float | None = None,
) -> tuple[Array, Array]:
    """Return uint8 parameters whose zero point is 0 for ranges without negatives, else 128."""
    stored = np.dtype(dtype)
    low, high = _widened(rmin, rmax, min_real_range)
    middle = middle_of(*UINT8.bounds())
    positive = low >= 0
    exact = np.where(positive, high / 255, np.maximum(-low / middle, high / (255 - middle)))
    tiny, largest = scale_limits(stored)
    scale = np.where(exact < tiny, 1.0, np.minimum(exact, largest)).astype(stored)
    return scale, np.where(positive, np.int64(0), np.int64(middle))


def share_zero_point(rmin: npt.ArrayLike, rmax: npt.ArrayLike, steps: int) -> tuple[Array, Array]:
    """Return ranges of channels widened so that all have one zero point among `steps` + 1 levels.

    It is the one with the least sum of squared scales, to which rounding errors are proportional.
    """
    low = np.minimum(np.asarray(rmin, np.float64), 0)
    high = np.maximum(np.asarray(rmax, np.float64), 0)
    zeros = np.arange(steps + 1, dtype=np.float64)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(low < 0, -low / zeros, 0)
        above = np.where(high > 0, high / (steps - zeros), 0)
    scales = np.maximum(below, above)
    best = int(np.argmin((scales**2).sum(axis=1)))
    scale = np.where(scales[best] > 0, scales[best], 1)
    return -best * scale, (steps - best) * scale


def middle_of(qmin: int, qmax: int) -> int:
    """Return the zero point of a symmetric range on these integers.

    >>> middle_of(0, 255), middle_of(-127, 127)
    (128, 0)
    """
    return (qmin + qmax + 1) // 2


def ceil_power_of_two(scale: npt.ArrayLike) -> Array:
    """Return the smallest power of two that is not below each positive scale, in float64.

    The exponent comes from the number's own bits, so exact powers stay what they are. Above
    2**1023 there is no power of two in float64, and 2**1023 is returned.

    >>> ceil_power_of_two([0.25, 0.3, 1.0]).tolist()
    [0.25, 0.5, 1.0]
    """
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))  # mantissa in [0.5, 1)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.asarray(np.ldexp(1.0, np.minimum(exponent, 1023)))


def nearest_power_of_two(scale: npt.ArrayLike) -> Array:
    """Return the power of two nearest each positive scale on a logarithmic axis, in float64.

    This clips a range by up to a factor of sqrt(2); `ceil_power_of_two` never clips.

    >>> nearest_power_of_two([0.3, 0.36, 1.4, 1.5]).tolist()
    [0.25, 0.5, 1.0, 2.0]
    """
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    exponent = np.where(mantissa < np.sqrt(0.5), exponent - 1, exponent)
    return np.asarray(np.ldexp(1.0, np.minimum(exponent, 1023)))


def nearest_int16_scale(scale: npt.ArrayLike) -> Array:
    """Return the number M / 2**N nearest each scale, 1 <= M <= 32767 and 0 <= N <= 16.

    Such a scale is an int16 multiplication and a shift. Scales outside the representable
    numbers saturate: 32767 is the largest, 2**-16 the smallest. float32 holds each of them
    exactly.
    """
    return _int16_scale(scale, np.rint)


def _covering_int16_scale(scale: Array, levels: int) -> Array:
    """Return the nearest M / 2**N that cuts off no more than a level; of small M, the next one."""
    nearest = nearest_int16_scale(scale)
    return np.where((scale - nearest) * levels > nearest, _int16_scale(scale, np.ceil), nearest)


def ceil_scale(
    scale: npt.ArrayLike, kind: Literal["float", "power-of-two", "int16"] = "float"
) -> Array:
    """Return the smallest scale of a kind that is not below each scale, in float64."""
    if kind == "float":
        return np.asarray(scale, np.float64)
    return ceil_power_of_two(scale) if kind == "power-of-two" else _int16_scale(scale, np.ceil)


def _int16_scale(scale: npt.ArrayLike, rounding: Callable[[Array], Array]) -> Array:
    wanted = np.asarray(scale, np.float64)
    best = np.full(wanted.shape, 32767.0)
    # A larger N is a finer grid that contains the coarser one, as far as M still fits: the
    # largest N that fits is the best. Rounding is exact here, since scaling by 2**N is.
    for shift in range(17):
        multiplier = rounding(np.ldexp(wanted, shift))
        best = np.where(multiplier <= 32767, np.ldexp(np.maximum(multiplier, 1.0), -shift), best)
    return best


def float_scale(
    std: npt.ArrayLike, qtype: QType, *, dtype: npt.DTypeLike = np.float32
) -> tuple[Array, Array]:
    """Return scale and zero point (always 0) of a float type, for data of this deviation.

    float16 and bfloat16 hold a tensor as it is, so their scale is 1. Of float8 types it is the
    deviation over that of all their finite values: data then uses these about as often as the
    type offers them, which is how ONNX Runtime's tool chooses it. A deviation of 0 gives 1.
    """
    if qtype.is_integer:
        raise RecipeError(f"{qtype} is not a float type; use affine_parameters for it.")
    deviation = _finite(std, "standard deviation")
    scale = np.ones(deviation.shape)
    if qtype.bits == 8:
        scale = np.where(deviation == 0, 1.0, deviation / _type_deviation(qtype))
    tiny, largest = scale_limits(np.dtype(dtype))
    scale = np.where(scale < tiny, 1.0, np.minimum(scale, largest)).astype(dtype)
    return scale, np.zeros(deviation.shape, np.int64)


def smallest_bias_scale(bias: npt.ArrayLike, *, per_channel: bool = False) -> Array:
    """Return the smallest scale with which an int32 bias does not overflow, in float64.

    A weight scale is enlarged until input scale times weight scale reaches it. With
    `per_channel` each bias value has a scale of its own. A bias of 0 fits any scale: 0.
    """
    magnitude = np.abs(_finite(bias, "bias"))
    if not per_channel:
        magnitude = np.asarray(magnitude.max(initial=0.0))
    # A ten-thousandth more than needed: the product of two float32 scales is itself rounded.
    return np.asarray(1.0001 * 2 * magnitude / (2**32 - 2))


def _widened(
    rmin: npt.ArrayLike, rmax: npt.ArrayLike, min_real_range: float | None
) -> tuple[Array, Array]:
    """Return the ranges in float64, containing 0 and at least `min_real_range` wide."""
    low, high = np.broadcast_arrays(_finite(rmin, "range"), _finite(rmax, "range"))
    if (low > high).any():
        where = np.unravel_index(np.argmax(low > high), low.shape)
        raise DataError(
            f"a range has its minimum {low[where]:g} above its maximum {high[where]:g}; "
            "give (minimum, maximum)."
        )
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if min_real_range is not None:
        high = np.maximum(high, low + min_real_range)
    return low, high


def _finite(values: npt.ArrayLike, what: str) -> Array:
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise DataError(
            f"a {what} is not finite (infinite or NaN); look for the input that makes the "
            "float model overflow, or keep the tensor float."
        )
    return array


@cache
def scale_limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest normal and the largest number of a float dtype."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.tiny), float(info.max)


def fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether all numbers are finite in a type."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(dtype).astype(np.float64)).all())


@cache
def _type_deviation(qtype: QType) -> float:
    values = np.arange(256, dtype=np.uint8).view(qtype.dtype).astype(np.float64)
    return float(values[np.isfinite(values)].std())
