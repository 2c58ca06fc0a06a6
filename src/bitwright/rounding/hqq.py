"""HQQ: fit the zero point of each block without data, as if a few weights could be left out.

H. Badri and A. Shaji, "Half-Quadratic Quantization" (2023). The error is measured by |e|^p with
p < 1, so that a few large weights do not decide for all. Half-quadratic splitting alternates
between what is left out of each weight (a soft threshold) and the best zero point for the rest.
The published method keeps the scale and needs zero points that are floats, for which ONNX Runtime
has no fast CPU kernel; rounded they lose all of the gain. So for integer zero points the scale is
fitted as well, after the rounding.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    BlockFormat,
    Grid,
    QuantizedBlocks,
    block_tiles,
    fit_grid,
    round_on_grid,
    usable_scales,
)

__all__ = ["fit_half_quadratic", "hqq"]

# The published settings.
_NORM = 0.7
_SHARPNESS = 10.0
_GROWTH = 1.01
_ROUNDS = 20


def hqq(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    float_zero_points: bool = False,
    xp: Arrays = NUMPY,
) -> QuantizedBlocks:
    """Return a weight [K, N] rounded on the grid that `fit_half_quadratic` gives.

    >>> import numpy as np
    >>> hqq(np.linspace(-1, 2, 32)[:, None], BlockFormat()).zero_points.tolist()
    [[5]]
    """
    grid = fit_half_quadratic(weights, format, float_zero_points=float_zero_points, xp=xp)
    return round_on_grid(weights, grid, format, xp=xp)


def fit_half_quadratic(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    float_zero_points: bool = False,
    xp: Arrays = NUMPY,
) -> Grid:
    """Return scales and zero points of blocks; none has a larger error |e|^0.7 than min and max.

    With `float_zero_points` the zero points alone are fitted, as published. A symmetric format has
    no zero points to fit, so its scales are.
    """
    work = xp.array(weights)
    start = fit_grid(work, format, xp=xp)
    scales, zeros = xp.copy(start.scales), xp.copy(start.zero_points)
    for blocks, sides, part in block_tiles(work, format, xp):
        scale, zero = start.scales[blocks, sides], start.zero_points[blocks, sides]
        best = (_norm(part, scale, zero, format, xp), scale, zero)
        sharpness = _SHARPNESS
        for _ in range(_ROUNDS):
            steps = _steps(part, scale, zero, format, xp)
            rest = part - _shrink(part - steps * scale[:, None], sharpness, xp)
            if not format.symmetric:
                # steps + zero are the codes; the zero point that suits them best.
                zero = zero + (steps - rest / scale[:, None]).mean(axis=1)
                if not float_zero_points:
                    zero = xp.rint(zero)
                zero = xp.clip_(zero, 0, format.highest)
            if format.symmetric or not float_zero_points:
                steps = _steps(part, scale, zero, format, xp)
                size = (steps * steps).sum(axis=1)
                fitted = (steps * rest).sum(axis=1) / xp.where(size > 0, size, size + 1)
                scale = usable_scales(xp.where(fitted != 0, fitted, scale), format, xp)
            error = _norm(part, scale, zero, format, xp)
            better = error < best[0]
            best = (
                xp.where(better, error, best[0]),
                xp.where(better, scale, best[1]),
                xp.where(better, zero, best[2]),
            )
            sharpness *= _GROWTH
        scales[blocks, sides], zeros[blocks, sides] = best[1], best[2]
    return Grid(scales, zeros)


def _steps(part: Any, scale: Any, zero: Any, format: BlockFormat, xp: Arrays) -> Any:
    """Return how many steps from zero each weight is stored."""
    codes = xp.rint_(part / scale[:, None] + zero[:, None])
    return xp.clip_(codes, 0, format.highest) - zero[:, None]


def _norm(part: Any, scale: Any, zero: Any, format: BlockFormat, xp: Arrays) -> Any:
    steps = _steps(part, scale, zero, format, xp)
    return (xp.abs(part - steps * scale[:, None]) ** _NORM).sum(axis=1)


def _shrink(error: Any, sharpness: float, xp: Arrays) -> Any:
    """Return the part of an error that is left out: the generalized soft threshold."""
    size = xp.abs(error)
    # A weight without an error has nothing to leave out, and no power below zero.
    safe = xp.where(size > 0, size, size + 1)
    left = size - safe ** (_NORM - 1) / sharpness
    return xp.sign(error) * xp.where((left > 0) & (size > 0), left, left * 0)
