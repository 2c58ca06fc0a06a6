"""AWQ: scale up the weight rows of channels with large inputs, which lowers their rounding error.

J. Lin et al., "AWQ" (2024, arXiv:2306.00978). Channel k of a layer's input is divided by s[k] and
row k of its weight multiplied by it: the same product, but another grid. The factors are powers of
the inputs' magnitudes, the best of a few by the error of the layer's output, which the second
moment of its inputs gives without keeping any of them. What is tried is quantized exactly as it
will be stored, in blocks, and clipped if it will be: clipping takes over a part of what scaling
gains, and a scaling that was chosen without it may do harm with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    BlockScales,
    block_diagonals,
    fit_block_scales,
    round_to_codes,
)
from bitwright.numerics.second_moment import output_error
from bitwright.support.array_types import F32, F64

_MIN_FACTOR = 1e-4
MAX_COLUMNS = 256
"""Columns of a wide layer that are scored."""
ALPHAS = tuple(step / 20 for step in range(21))
"""Exponents of the input magnitudes that are tried."""
CLIP_RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Clipping ratios with which a scaling is scored where `awq_clip` follows."""

# Error with scaling over that without, above which nothing is scaled: smaller gains on the
# calibration data hardly carry over, and a division that cannot be folded costs a node.
_MAX_ERROR_RATIO = 0.95


def awq_scales(
    weights: Sequence[npt.ArrayLike],
    magnitudes: npt.ArrayLike,
    moment: npt.ArrayLike,
    format: BlockFormat,
    *,
    alphas: Sequence[float] = ALPHAS,
    shrinks: Sequence[float] = (1.0,),
    xp: Arrays = NUMPY,
) -> F64:
    """Return the factors s [K] for layers that read the same input: weights times, inputs over s.

    `magnitudes` are the mean |x| of the input's channels, `moment` its second moment. Three
    families are tried, |x|^alpha, with the root of the mean square for |x|, and
    |x|^alpha / |w|^(1 - alpha) with |w| the mean share of a row in its blocks' ranges; ones where
    none of them is much better than that. `shrinks` are the parts of ranges to clip to:
    `CLIP_RATIOS` where `awq_clip` follows. Of wide layers evenly spaced columns stand for all.
    """
    sizes = np.asarray(magnitudes, np.float64)
    arrays = [np.asarray(weight) for weight in weights]
    parts = [a[:, :: max(1, a.shape[1] // MAX_COLUMNS)].astype(np.float32) for a in arrays]
    if not parts or any(part.shape[0] != sizes.size for part in parts):
        raise DataError(
            f"the inputs have {sizes.size} channels, the weights "
            f"{[part.shape[0] for part in parts]} rows: give layers that read these inputs."
        )
    measure = _error_measure(parts, moment, format, shrinks, xp)
    diagonal = xp.numpy(xp.array(moment, "float64").diagonal())
    roots = np.sqrt(np.maximum(diagonal, 0))
    families = _families(sizes, roots, _range_fractions(parts, format))
    factors, error = _least_error(families, alphas, measure)
    ones = np.ones(sizes.size)
    return ones if error >= _MAX_ERROR_RATIO * measure(ones) else factors


def _least_error(
    families: Sequence[Callable[[float], F64]],
    alphas: Sequence[float],
    measure: Callable[[F64], float],
) -> tuple[F64, float]:
    """Return the factors of least error, of all families and strengths, and their error."""
    errors: dict[tuple[int, int], float] = {}

    def attempt(family: int, place: int) -> None:
        errors[family, place] = measure(_around_one(families[family](alphas[place])))

    # Every other strength first, then those beside the best.
    for family in range(len(families)):
        for place in range(0, len(alphas), 2):
            attempt(family, place)
    family, best = min(errors, key=errors.__getitem__)
    for place in (best - 1, best + 1):
        if 0 <= place < len(alphas):
            attempt(family, place)
    family, best = min(errors, key=errors.__getitem__)
    return _around_one(families[family](alphas[best])), errors[family, best]


def _error_measure(
    parts: Sequence[F32],
    moment: npt.ArrayLike,
    format: BlockFormat,
    shrinks: Sequence[float],
    xp: Arrays,
) -> Callable[[F64], float]:
    """Return what gives the error of layers' outputs when weights are scaled and quantized."""
    originals, second_moment = [xp.array(part) for part in parts], xp.array(moment)
    blocks = block_diagonals(moment, format, xp=xp) if len(shrinks) > 1 else None

    def measure(factors: F64) -> float:
        column = xp.array(factors)[:, None]
        metric = None
        if blocks is not None:
            count, length, _ = blocks.shape
            over = np.ones(count * length)
            over[: factors.size] = 1 / factors
            sides = xp.array(over.reshape(count, length))
            metric = blocks * sides[:, :, None] * sides[:, None, :]
        error = 0.0
        for part in originals:
            scaled = part * column
            grid = fit_block_scales(scaled, format, shrinks=shrinks, steps=(), metric=metric, xp=xp)
            stored = round_to_codes(scaled, grid, format, xp=xp).dequantize(np.float32)
            change = (xp.array(stored) - scaled) / column
            error += float(output_error(change, second_moment, xp=xp).mean())
        return error

    return measure


def awq_clip(
    weights: npt.ArrayLike,
    moment: npt.ArrayLike,
    format: BlockFormat,
    *,
    shrinks: Sequence[float] = SHRINKS,
    xp: Arrays = NUMPY,
) -> BlockScales:
    """Return the grid whose blocks are clipped where that lowers what each adds to the output.

    Weights and moment are those after scaling. Round on it to
    nearest with `round_to_codes`, or hand it to GPTQ.
    """
    metric = block_diagonals(moment, format, xp=xp)
    return fit_block_scales(weights, format, shrinks=shrinks, metric=metric, xp=xp)


def awq_shrink(
    weights: npt.ArrayLike,
    moment: npt.ArrayLike,
    format: BlockFormat,
    *,
    shrinks: Sequence[float],
    xp: Arrays = NUMPY,
) -> float:
    """Return the part of their ranges that all blocks of a weight do best with, as one number.

    `awq_clip` chooses for each block, which is better; this is for tools that keep one number.
    """
    work = xp.array(weights)
    errors = []
    for shrink in shrinks:
        grid = fit_block_scales(work, format, shrinks=(shrink,), xp=xp)
        stored = round_to_codes(work, grid, format, xp=xp).dequantize(np.float32)
        errors.append(float(output_error(xp.array(stored) - work, moment, xp=xp).mean()))
    return shrinks[int(np.argmin(errors))]


def _range_fractions(parts: Sequence[F32], format: BlockFormat) -> F64:
    """Return how much of its block's largest magnitude a row takes, on average over outputs."""
    total = 0.0
    for part in parts:
        rows = part.shape[0]
        length = format.length(rows)
        sizes = np.abs(part)
        largest = np.maximum.reduceat(sizes, np.arange(0, rows, length), axis=0)
        over = format.per_weight(largest, rows)
        total = total + (sizes / np.where(over > 0, over, 1)).mean(axis=1, dtype=np.float64)
    return np.asarray(total / len(parts))


def _families(sizes: F64, roots: F64, fractions: F64) -> tuple[Callable[[float], F64], ...]:
    """Return the kinds of factors, each by the strength of the inputs' share in them."""
    sizes, roots = (
        np.maximum(each, _MIN_FACTOR * max(float(each.max()), 1e-30)) for each in (sizes, roots)
    )
    fractions = np.maximum(fractions, _MIN_FACTOR)
    return (
        lambda alpha: sizes**alpha,
        lambda alpha: roots**alpha,
        lambda alpha: sizes**alpha / fractions ** (1 - alpha),
    )


def _around_one(factors: F64) -> F64:
    """Return factors whose extremes lie around one: scaled weights stay within their type."""
    middle = np.sqrt(factors.max() * factors.min())
    return np.asarray(np.maximum(factors / middle, _MIN_FACTOR))
