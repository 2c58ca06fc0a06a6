"""HQQ: fit the scales and zero points of blocks without data, alternating with their codes.

H. Badri and A. Shaji, "Half-Quadratic Quantization" (2023), take the scale of min and max, and then
alternately round the weights, leave out what a soft threshold lets through of the errors, and take
the zero point that suits the rest best. Of 20 rounds the one with the least mean |e| of the whole
weight is kept, and zero points stay floats. What differs here, and why:

* There is no threshold. The published one, p = 0.7 and sharpness 10, lets through nothing of errors
  below 0.17, and those of a language model in 4 bits are about 0.01. Without it, a round is least
  squares.
* The scale is fitted as well, from several starts: least squares comes to rest at the first grid
  whose codes agree with it.
* Each block keeps the round with its own least squared error. Kept by |e| or |e|^0.7, these rounds
  leave a language model further from float.
* Zero points are integers unless floats are asked for, which ONNX Runtime has no fast CPU kernel
  for. Rounding fitted floats loses all of the gain; so the neighbours of the clipped range's zero
  point are tried, and the scale is fitted to each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy.typing as npt

from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    BlockScales,
    QuantizedBlocks,
    block_tiles,
    fit_block_scales,
    round_to_codes,
    usable_scales,
)

# The starts with float zero points, as parts of the range, and those with integers, as moves of
# the zero point. Twice as many, or as many rounds, lower the squared error of a language model by
# one part in a hundred.
_START_SHRINKS = (1.0, 0.95, 0.9, 0.85)
_START_SHIFTS = (0, -1, 1)
_FLOAT_ROUNDS = 7
_ROUNDS = 5

# Limits of the factor by which a fit changes a scale: beyond, the codes are nearly all the same.
_MIN_SLOPE, _MAX_SLOPE = 0.5, 2.0

# Largest zero point, in widths of the range: beyond, float16 does not resolve single codes.
_MAX_ZERO_POINT = 16


def hqq(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    float_zero_points: bool = False,
    xp: Arrays = NUMPY,
) -> QuantizedBlocks:
    """Return a weight [K, N] rounded, no block with a larger squared error than min and max give.

    Where zero points are integers, none has a larger one than the best of the clipped ranges
    (`SHRINKS`) gives, either. A symmetric format has no zero points to fit.
    """
    work = xp.array(weights)
    floats = float_zero_points and not format.symmetric
    start = fit_block_scales(work, format, shrinks=(1.0,) if floats else SHRINKS, xp=xp)
    scales, zeros = xp.copy(start.scales), xp.copy(start.zero_points)
    for blocks, sides, part in block_tiles(work, format, xp):
        # A last block that is filled up has fewer weights to suit.
        part = part[:, : work.shape[0] - blocks.start * part.shape[1]]
        known = scales[blocks, sides], zeros[blocks, sides]
        kept: tuple[Any, ...] = (_round(part, *known, format, xp).cost, *known)
        for scale, zero in _starts(part, *known, format, floats, xp):
            for _ in range(_FLOAT_ROUNDS if floats else _ROUNDS):
                rounded = _round(part, scale, zero, format, xp)
                better = rounded.cost < kept[0]
                pairs = zip((rounded.cost, scale, zero), kept, strict=True)
                kept = tuple(xp.where(better, new, old) for new, old in pairs)
                fit = _fit_both if floats else _fit_scale
                scale, zero = fit(rounded, scale, zero, part.shape[1], xp)
                scale = usable_scales(scale, format, xp)
                zero = _usable_zeros(zero, format, xp)
        scales[blocks, sides], zeros[blocks, sides] = kept[1], kept[2]
    return round_to_codes(weights, BlockScales(scales, zeros), format, xp=xp)


def _starts(
    part: Any, scale: Any, zero: Any, format: BlockFormat, floats: bool, xp: Arrays
) -> Iterator[tuple[Any, Any]]:
    """Yield the grids to begin with, from the known one or from parts of the range."""
    if floats:
        low, high = xp.amin(part, 1), xp.amax(part, 1)
        # Where all weights are the same there is nothing to divide by, nor to be gained.
        width = xp.where(high > low, high - low, scale * format.highest)
        for share in _START_SHRINKS:
            scale = usable_scales(width * (share / format.highest), format, xp)
            yield scale, _usable_zeros(-low * share / scale, format, xp)
        return
    for move in (0,) if format.symmetric else _START_SHIFTS:
        yield scale, xp.clip_(zero + move, 0, format.highest)


def _usable_zeros(zero: Any, format: BlockFormat, xp: Arrays) -> Any:
    """Return zero points as they are stored; new ones, as they are limited in place."""
    far = _MAX_ZERO_POINT * format.highest
    return xp.rounded(xp.clip_(zero + 0, -far, far), format.scale_type)


class _Rounded(NamedTuple):
    """Sums over each block: of codes, and of rounding errors in steps of the grid."""

    cost: Any
    """The squared error, of the weights themselves."""
    errors: Any
    codes: Any
    products: Any
    """Codes times errors."""
    squares: Any
    """Codes times codes."""


def _round(part: Any, scale: Any, zero: Any, format: BlockFormat, xp: Arrays) -> _Rounded:
    """Return what rounding blocks [n, length, N] on grids [n, N] gives."""
    error = part * (1 / scale)[:, None]
    error += zero[:, None]
    codes = xp.clip_(xp.rint(error), 0, format.highest)
    error -= codes
    return _Rounded(
        _dot(error, error, xp) * scale * scale,
        error.sum(axis=1),
        codes.sum(axis=1),
        _dot(codes, error, xp),
        _dot(codes, codes, xp),
    )


def _dot(left: Any, right: Any, xp: Arrays) -> Any:
    return xp.einsum("nlc,nlc->nc", left, right)


def _fit_both(of: _Rounded, scale: Any, zero: Any, count: int, xp: Arrays) -> tuple[Any, Any]:
    """Return the line through weights against codes: its slope, and the code where it is zero.

    With a slope of one this is the published step: the zero point moves by the mean error.
    """
    variance = of.squares - of.codes * of.codes / count
    covariance = of.products - of.codes * of.errors / count
    slope = _slope(covariance, variance, xp)
    offset = (of.errors + (1 - slope) * of.codes) / count
    return scale * slope, (zero - offset) / slope


def _fit_scale(of: _Rounded, scale: Any, zero: Any, count: int, xp: Arrays) -> tuple[Any, Any]:
    """Return the scale that suits the codes best, and the zero point as it is."""
    size = of.squares - 2 * zero * of.codes + count * zero * zero
    return scale * _slope(of.products - zero * of.errors, size, xp), zero


def _slope(covariance: Any, variance: Any, xp: Arrays) -> Any:
    """Return one plus the slope of the errors; one where the codes cannot tell."""
    # Codes are integers: two that differ have a variance of a half.
    slope = 1 + covariance / xp.where(variance > 0.25, variance, variance * 0 + 1)
    usable = (variance > 0.25) & (slope > _MIN_SLOPE) & (slope < _MAX_SLOPE)
    return xp.where(usable, slope, slope * 0 + 1)
