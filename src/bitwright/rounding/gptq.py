"""GPTQ: round row by row, and compensate each rounding error in the rows to come.

E. Frantar et al., "GPTQ" (2023, arXiv:2210.17323). The paper subtracts from every later row its
share of an error, U[i, j] e[i], with U the upper Cholesky factor of the inverse Hessian. The same
numbers come without an inverse: with H = M M' and M upper triangular, the error in row i reads
e = M'(w - q), so that the value to round in row i is

    w[i] + sum over l < i of M[l, i] / M[i, i] * (w[l] - q[l])

and a rounding error d in that row costs M[i, i]^2 d^2. M is the Cholesky factor of H with its
rows and columns in opposite order, which is a third of the work of inverting and factoring, and
the sums over earlier rows are products of large matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError, RecipeError
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    BlockScales,
    QuantizedBlocks,
    collect,
    fit_block_scales,
    fit_shared_scales,
    nearest_codes,
    values_of,
)
from bitwright.numerics.second_moment import MAX_COPIED_CHANNELS
from bitwright.numerics.wide_matrices import factor_, permute_, unit_rows_
from bitwright.rounding.compensated_rows import row_rounder

# Rows whose sums over all earlier rows are computed by one matrix product.
_ROWS_AT_ONCE = 128

# Each attempt adds ten times as much; the last one a hundred times the mean of the diagonal.
_DAMPING_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, eq=False)
class HessianFactor:
    """A Hessian in the form that rounding needs; layers that read the same input share one."""

    order: Any
    """Row numbers in the order of rounding."""
    lower: Any
    """[K, K], unit lower triangular, in that order: what earlier rows' changes do to a row."""
    costs: Any
    """[K], in that order: what a squared rounding error costs once later rows make up for it."""
    metric: Any
    """The costs in the weight's own order: by them the scales of blocks are chosen."""
    act_order: bool
    xp: Arrays


def factor_hessian(
    hessian: npt.ArrayLike,
    *,
    damping: float = 0.01,
    act_order: bool = True,
    overwrite: bool = False,
    xp: Arrays = NUMPY,
) -> HessianFactor:
    """Return a Hessian [K, K] (a layer's `SecondMoment`) factored for `gptq`.

    `damping` times the mean of the diagonal is added to it; ten times as much, and so on, where
    that is not enough. It also stands in for channels that were zero throughout: these are
    rounded to nearest. With `act_order` the rows with the largest inputs are rounded first.
    `overwrite` lets the factor take the memory of the Hessian, if that is numpy's and large.
    """
    matrix = xp.array(hessian, "float64")
    rows = matrix.shape[0]
    if matrix.ndim != 2 or matrix.shape[1] != rows:
        raise DataError(f"a Hessian is a square matrix, not one of shape {tuple(matrix.shape)}.")
    diagonal = xp.copy(matrix.diagonal())
    mean = float(diagonal.sum()) / rows
    if not np.isfinite(mean):
        raise DataError("the Hessian holds NaN or infinity: so does the calibration data.")
    if mean <= 0:
        raise DataError("the layer's inputs are all zero: give calibration data that reaches it.")
    places = xp.descending(diagonal) if act_order else xp.indices(np.arange(rows))
    factor_by = _factor_in_place if xp is NUMPY and rows > MAX_COPIED_CHANNELS else _factor
    if factor_by is _factor_in_place and not overwrite:
        matrix = xp.copy(matrix)
    lower, sizes = factor_by(matrix, places, damping * mean, xp)
    costs = xp.array(sizes**2)
    metric = xp.zeros(rows)
    metric[places] = costs
    return HessianFactor(
        order=places, lower=lower, costs=costs, metric=metric, act_order=act_order, xp=xp
    )


def _factor(matrix: Any, places: Any, damping: float, xp: Arrays) -> tuple[Any, Any]:
    """Return M' with each row over its diagonal element, and the diagonal."""
    rows = matrix.shape[0]
    backwards = xp.indices(xp.numpy(places)[::-1].copy())
    ends = np.arange(rows)
    for attempt in range(_DAMPING_ATTEMPTS):
        reversed_ = matrix[backwards[:, None], backwards]
        reversed_[ends, ends] += damping * 10**attempt
        factor = xp.cholesky(reversed_)
        if factor is not None:
            break
    else:
        raise _indefinite(matrix, damping)
    # M' = J L' J with J the reversal; each row over its own diagonal element.
    sizes = xp.copy(factor.diagonal())
    factor /= sizes
    lower = xp.copy(xp.array(xp.flip(factor.T)))
    return lower, sizes[xp.indices(ends[::-1].copy())]


def _factor_in_place(matrix: Any, places: Any, damping: float, xp: Arrays) -> tuple[Any, Any]:
    """Return the same as `_factor`, in the memory of the matrix."""
    permute_(matrix, xp.numpy(places))
    if any(factor_(matrix, damping * 10**attempt) for attempt in range(_DAMPING_ATTEMPTS)):
        return unit_rows_(matrix)
    raise _indefinite(matrix, damping)


def _indefinite(matrix: Any, damping: float) -> DataError:
    most = damping * 10 ** (_DAMPING_ATTEMPTS - 1) * len(matrix) / float(matrix.diagonal().sum())
    return DataError(
        f"the Hessian is not positive definite, even with {most:g} times the mean of its diagonal "
        "added; is it a mean of x x'?"
    )


def gptq(
    weights: npt.ArrayLike,
    factor: HessianFactor,
    format: BlockFormat,
    *,
    grid: BlockScales | None = None,
    static_groups: bool = True,
    shrinks: Sequence[float] = SHRINKS,
    per_column: bool = True,
    guard: bool = True,
) -> QuantizedBlocks:
    """Return a weight [K, N] rounded so that its output changes as little as may be.

    The grid is `grid`, or the best of `shrinks` by what errors cost: from the weights as they are
    (`static_groups`, needed with act_order), or as the roundings of earlier blocks have
    compensated them. Without `per_column` all columns of a block share one scale, chosen
    beforehand. With `guard`, a column (an output) that nearest rounding on the plain grid would
    serve better is rounded so: none is ever worse.
    """
    xp = factor.xp
    work = xp.array(weights)
    rows = work.shape[0]
    if tuple(factor.lower.shape) != (rows, rows):
        raise DataError(
            f"the weight has {rows} rows, the Hessian {factor.lower.shape[0]}: it is of another "
            "layer's input."
        )
    moving = grid is None and per_column and not static_groups and format.block_size != -1
    if moving and factor.act_order:
        raise RecipeError(
            "with act_order the rows of a block are not rounded together, so its scale must be "
            "chosen before: use static_groups=True."
        )
    if grid is None:
        fit = fit_block_scales if per_column else fit_shared_scales
        grid = fit(work, format, shrinks=shrinks, metric=factor.metric, xp=xp)
    codes, losses = _sweep(work, factor, format, grid, shrinks if moving else None)
    if guard and per_column:  # the other rounding has a scale for each column
        codes, grid = _guarded(codes, grid, losses, work, factor, format)
    return collect(codes, grid, format, xp)


def _sweep(
    weights: Any,
    factor: HessianFactor,
    format: BlockFormat,
    grid: BlockScales,
    shrinks: Sequence[float] | None,
) -> tuple[Any, Any]:
    """Return codes [K, N] and each column's loss; with `shrinks` the grid is filled on the way."""
    xp, lower = factor.xp, factor.lower
    rows, columns = weights.shape
    length = format.length(rows)
    order = factor.order
    places = xp.indices(xp.numpy(order) // length)
    work = weights[order] if factor.act_order else weights
    changes = xp.empty(rows, columns)
    losses = xp.zeros(columns)
    codes = xp.empty_codes(rows, columns)

    round_block = row_rounder(weights.size, format.highest, xp)
    # Scales that move are chosen at the start of a block, so both kinds of block must agree.
    block = length if shrinks is not None else _ROWS_AT_ONCE
    for start in range(0, rows, block):
        own = slice(start, min(start + block, rows))
        target = work[own] + lower[own, :start] @ changes[:start]
        if shrinks is not None:
            _refit(grid, start // length, target - work[own], work, factor, format, shrinks)
        scales, zeros = grid.scales[places[own]], grid.zero_points[places[own]]
        found, changes[own], errors = round_block(target, work[own], lower[own, own], scales, zeros)
        codes[order[own]] = xp.codes(found)
        errors *= errors
        losses += factor.costs[own] @ errors
    return codes, losses


def _refit(
    grid: BlockScales,
    place: int,
    carried: Any,
    work: Any,
    factor: HessianFactor,
    format: BlockFormat,
    shrinks: Sequence[float],
) -> None:
    """Choose one block's scales for its weights as earlier roundings have compensated them."""
    xp = factor.xp
    start = place * format.length(work.shape[0])
    stop = start + carried.shape[0]
    # `carried` is the compensation of earlier blocks, before that of the rows for each other.
    current = work[start:stop] + xp.solve(factor.lower[start:stop, start:stop], carried)
    metric = factor.metric[start:stop]
    if stop - start < format.length(work.shape[0]):
        whole = xp.zeros(format.length(work.shape[0]), work.shape[1])
        whole[: stop - start] = current
        weighed = xp.zeros(whole.shape[0])
        weighed[: stop - start] = metric
        current, metric = whole, weighed
    found = fit_block_scales(current, format, shrinks=shrinks, metric=metric, xp=xp)
    grid.scales[place], grid.zero_points[place] = found.scales[0], found.zero_points[0]


def _guarded(
    codes: Any,
    grid: BlockScales,
    losses: Any,
    weights: Any,
    factor: HessianFactor,
    format: BlockFormat,
) -> tuple[Any, BlockScales]:
    """Return codes and grid with nearest rounding in the columns where that loses less."""
    xp = factor.xp
    plain = fit_block_scales(weights, format, xp=xp)
    nearest = nearest_codes(weights, plain, format, xp)
    changes = (weights - values_of(nearest, plain, format, xp))[factor.order]
    columns = xp.indices(np.arange(weights.shape[1]))
    spent = xp.zeros(weights.shape[1])
    # The loss is a sum over rows of (M' d)^2. A column is out as soon as a part of the sum exceeds
    # what the other rounding lost, and the first rows, which are cheap, mostly decide it.
    for start in range(0, weights.shape[0], _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, weights.shape[0])
        errors = factor.lower[start:stop, :stop] @ changes[:stop]
        spent += (errors * errors * factor.costs[start:stop, None]).sum(axis=0)
        open_still = spent < losses
        if not bool(open_still.all()):
            changes, columns = changes[:, open_still], columns[open_still]
            spent, losses = spent[open_still], losses[open_still]
        if not columns.shape[0]:
            return codes, grid
    scales, zeros = xp.copy(grid.scales), xp.copy(grid.zero_points)
    for mine, theirs in ((codes, nearest), (scales, plain.scales), (zeros, plain.zero_points)):
        mine[:, columns] = theirs[:, columns]
    return codes, BlockScales(scales, zeros)
