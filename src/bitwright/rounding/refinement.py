"""Refit the scales and codes of a quantized weight to the inputs of its layer.

For fixed codes the best scales are a least-squares problem in what the layer puts out; for fixed
scales so is each code, up to rounding. Each step below solves one of them exactly, so that the
error on the calibration data never grows: block after block, the rows of a block and then its
scale (coordinate descent, as QuantEase does for codes: K. Behdin et al. 2023, arXiv:2309.01885).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    BlockFormat,
    BlockScales,
    QuantizedBlocks,
    collect,
    usable_scales,
)

# Rows of a block that are taken one after the other before the rest of it learns of them.
_STRIPE = 16

# Rows up to which a block is one piece of work for a GPU.
_MAX_CAPTURED = 256


def refine(
    weights: npt.ArrayLike,
    blocks: QuantizedBlocks,
    hessian: npt.ArrayLike,
    *,
    rounds: int = 2,
    damping: float = 0.01,
    xp: Arrays = NUMPY,
) -> QuantizedBlocks:
    """Return a quantized weight with its scales and codes refitted to the data.

    `hessian` is the second moment of the layer's inputs; `damping` times the mean of its diagonal
    is added to that, so that directions which the data does not show are left as they are. By this
    measure no output's error grows. A round costs as much as the Hessian times the weight.
    """
    work = xp.array(weights)
    format = blocks.format
    rows = work.shape[0]
    matrix = _damped(xp.array(hessian), work, blocks, damping, xp)
    length = format.length(rows)
    scales = xp.copy(xp.array(blocks.scales))
    zeros = blocks.zero_points
    offsets = scales * 0 + format.middle if zeros is None else xp.array(zeros)
    steps = xp.array(blocks.codes) - format.per_weight(offsets, rows)
    change = steps * format.per_weight(scales, rows) - work
    # What one unit of change in each row adds to half of the error's slope there.
    slope = matrix @ change

    improve: Any = partial(_improve, format=format, xp=xp)
    if length <= _MAX_CAPTURED:
        improve = xp.captured(("refine", format), improve)
    for _ in range(rounds):
        for place in range(format.blocks(rows)):
            start, stop = place * length, min((place + 1) * length, rows)
            here = slice(start, stop)
            before = xp.copy(change[here])
            change[here], steps[here], slope[here], scales[place] = improve(
                *(change[here], steps[here], slope[here]),
                *(matrix[here, here], scales[place], offsets[place]),
            )
            moved = change[here] - before
            # The rows of the block itself have been kept up to date.
            slope[:start] += matrix[:start, here] @ moved
            slope[stop:] += matrix[stop:, here] @ moved
    found = xp.codes(xp.rint(steps + format.per_weight(offsets, rows)))
    return collect(found, BlockScales(scales, offsets), format, xp)


def _damped(matrix: Any, work: Any, blocks: QuantizedBlocks, damping: float, xp: Arrays) -> Any:
    """Return a second moment that fits the weight, with a share of its mean diagonal added."""
    rows = work.shape[0]
    if tuple(matrix.shape) != (rows, rows) or blocks.shape != tuple(work.shape):
        raise DataError(
            f"the weight {tuple(work.shape)}, its codes {blocks.shape} and the Hessian "
            f"{tuple(matrix.shape)} do not belong together."
        )
    matrix = xp.copy(matrix)
    ends = np.arange(rows)
    matrix[ends, ends] += damping * float(matrix.diagonal().sum()) / rows
    return matrix


def _improve(
    change: Any,
    steps: Any,
    slope: Any,
    own: Any,
    scale: Any,
    zero: Any,
    format: BlockFormat,
    xp: Arrays,
) -> tuple[Any, Any, Any, Any]:
    """Return a block's changes, steps and slope with its best codes, and its best scale.

    Rows get their codes one after the other; all arrays change in place.
    """
    rows, curvature = steps.shape[0], own.diagonal()[:, None]
    # An input that is always zero has nothing to gain.
    bends = xp.where(curvature > 0, curvature, curvature * 0 + float("inf")) * scale
    for top in range(0, rows, _STRIPE):
        end = min(top + _STRIPE, rows)
        moved = xp.zeros(end - top, steps.shape[1])
        for row in range(top, end):
            here = slope[row] + own[row, top:row] @ moved[: row - top]
            best = xp.rint_(steps[row] - here / bends[row])
            best += zero
            xp.clip_(best, 0, format.highest)
            best -= zero
            moved[row - top] = (best - steps[row]) * scale
            steps[row] = best
        change[top:end] += moved
        slope += own[:, top:end] @ moved
    return change, steps, slope, _refit(change, steps, slope, own, scale, format, xp)


def _refit(
    change: Any, steps: Any, slope: Any, own: Any, old: Any, format: BlockFormat, xp: Arrays
) -> Any:
    """Return the best scale of a block; the other arrays follow in place."""
    bent = own @ steps
    curvature = (steps * bent).sum(axis=0)
    first = (steps * slope).sum(axis=0)
    step = -first / xp.where(curvature > 0, curvature, curvature * 0 + float("inf"))
    new = usable_scales(old + step, format, xp)
    # A scale of zero, or one that its type rounds too far off, is no gain.
    gain = 2 * (new - old) * first + (new - old) ** 2 * curvature
    moved = xp.where(gain < 0, new - old, old * 0)
    change += steps * moved
    slope += bent * moved
    return old + moved
