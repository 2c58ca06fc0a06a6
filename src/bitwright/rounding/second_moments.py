"""Round a weight with given or fitted scales so that the output of its layer changes least.

The squared error of an output is d' H d with d the change of its weights and H the second moment
of what the layer reads, a convolution's windows taken as rows. GPTQ rounds by it, and coordinate
descent refits codes and scales; nearest rounding stays where it is better.

H has K^2 numbers: where fewer than ROWS_PER_WEIGHT rows were seen for each of the K weights, what
lies off its diagonal is shrunk by as much, down to E[x^2] alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bitwright.numerics.blocks import BlockFormat, BlockScales
from bitwright.rounding.gptq import factor_hessian, gptq
from bitwright.rounding.refinement import refine
from bitwright.support.array_types import F64, Array

ROWS_PER_WEIGHT = 4
DAMPING = 0.01
ROUNDS = 3
SHRINKS = tuple(1.0 - 0.025 * step for step in range(21))
"""Shares of a column's range whose scales are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixGrid:
    """The levels of a weight [K, N]: codes from 0 on, the code of zero, a scale for each column."""

    bits: int
    scales: F64
    zeros: Array

    @property
    def format(self) -> BlockFormat:
        """Whole columns with the zero codes given."""
        return BlockFormat(bits=self.bits, block_size=-1, negative_scales=False)

    @property
    def blocks(self) -> BlockScales:
        """The same as one block a column."""
        shape = (1, len(self.scales))
        scales = np.broadcast_to(self.scales.astype(np.float32), shape)
        return BlockScales(scales.copy(), np.broadcast_to(self.zeros, shape).astype(np.float32))

    def round(self, weights: Array) -> F64:
        """Return the nearest levels of a weight."""
        scales = self.scales.astype(np.float32).astype(np.float64)
        codes = np.clip(np.rint(weights / scales) + self.zeros, 0, 2**self.bits - 1)
        return np.asarray((codes - self.zeros) * scales)


def trusted_moment(moment: F64, rows: int) -> F64:
    """Return a second moment, off its diagonal shrunk by what so many rows say of it."""
    share = min(1.0, rows / (ROWS_PER_WEIGHT * len(moment)))
    return share * moment + (1 - share) * np.diag(moment.diagonal())


def fit_scales(weights: Array, grid: MatrixGrid, metric: Array) -> MatrixGrid:
    """Return the grid with each column's range shrunk to where its weighted error is least."""
    best = np.full(len(grid.scales), np.inf)
    scales = grid.scales.copy()
    for shrink in SHRINKS:
        tried = MatrixGrid(grid.bits, grid.scales * shrink, grid.zeros)
        cost = (metric[:, None] * np.square(weights - tried.round(weights))).sum(axis=0)
        better = cost < best
        best[better], scales[better] = cost[better], tried.scales[better]
    return MatrixGrid(grid.bits, scales, grid.zeros)


def output_errors(change: Array, moment: F64) -> F64:
    """Return d' H d of each column."""
    return np.asarray(((moment @ change) * change).sum(axis=0))


def round_by_moment(
    weights: Array, moment: F64, grid: MatrixGrid, *, fit: bool
) -> tuple[F64, MatrixGrid]:
    """Return a weight [K, N] on a grid, and the grid; with `fit` its scales are chosen too.

    By the moment no column is further from the float output than nearest rounding on the grid.
    """
    work = np.asarray(weights, np.float64)
    result, found = grid.round(work), grid
    if not moment.diagonal().sum() > 0:  # nothing but zeros is read
        return result, found
    scales = grid.scales.copy()
    errors = output_errors(work - result, moment)
    factor = factor_hessian(moment, damping=DAMPING)
    for tried in (grid, fit_scales(work, grid, np.asarray(factor.metric))) if fit else (grid,):
        blocks = gptq(work, factor, grid.format, grid=tried.blocks, guard=False)
        if fit:
            blocks = refine(work, blocks, moment, rounds=ROUNDS, damping=DAMPING)
        values = blocks.dequantize()
        cost = output_errors(work - values, moment)
        # Refitted scales may turn the sign of a column, which no format of integers has.
        better = (cost < errors) & (np.asarray(blocks.scales)[0] > 0)
        result[:, better], errors[better] = values[:, better], cost[better]
        scales[better] = np.asarray(blocks.scales, np.float64)[0, better]
    return result, MatrixGrid(grid.bits, scales, grid.zeros)


def round_each_by_moment(
    weights: Array, moments: F64, grid: MatrixGrid, *, fit: bool
) -> tuple[F64, MatrixGrid]:
    """Return columns [K, N] on a grid, each by a moment [N, K, K] of its own, and the grid.

    A depthwise convolution has hundreds of columns with few weights and another input for each:
    all descend at once, row after row, from the nearest codes of several scales. No column is
    further from the float output than by nearest rounding.
    """
    work = np.asarray(weights, np.float64)
    result, scales = grid.round(work), grid.scales.copy()
    errors = _errors_of_each(work - result, moments)
    diagonals = np.einsum("nkk->kn", moments)
    damped = moments + DAMPING * diagonals.mean(axis=0)[:, None, None] * np.eye(len(work))
    starts = [MatrixGrid(grid.bits, grid.scales * shrink, grid.zeros) for shrink in SHRINKS]
    for tried in starts if fit else [grid]:
        values, found = _descend_together(work, damped, tried, fit=fit)
        cost = _errors_of_each(work - values, moments)
        better = (cost < errors) & (found.scales > 0)
        result[:, better], errors[better] = values[:, better], cost[better]
        scales[better] = found.scales[better]
    return result, MatrixGrid(grid.bits, scales, grid.zeros)


def _errors_of_each(change: F64, moments: F64) -> F64:
    return np.asarray(np.einsum("kn,nkl,ln->n", change, moments, change, optimize=True))


def _descend_together(
    work: F64, moments: F64, grid: MatrixGrid, *, fit: bool
) -> tuple[F64, MatrixGrid]:
    """Give each row of all columns its best codes, and with `fit` each column its best scale."""
    scales = grid.scales.astype(np.float32).astype(np.float64)
    steps = np.rint(grid.round(work) / scales)
    curvatures = np.einsum("nkk->kn", moments)
    for _ in range(ROUNDS):
        slope = np.einsum("nkl,ln->kn", moments, steps * scales - work)
        for row, curvature in enumerate(curvatures):
            bend = np.where(curvature > 0, curvature, np.inf) * scales
            best = np.rint(steps[row] - slope[row] / bend) + grid.zeros
            best = np.clip(best, 0, 2**grid.bits - 1) - grid.zeros
            slope += moments[:, :, row].T * ((best - steps[row]) * scales)
            steps[row] = best
        if fit:
            bent = np.einsum("nkl,ln->kn", moments, steps)
            size = (steps * bent).sum(axis=0)
            fitted = np.divide((work * bent).sum(axis=0), size, out=scales.copy(), where=size > 0)
            scales = fitted.astype(np.float32).astype(np.float64)
    return steps * scales, MatrixGrid(grid.bits, scales, grid.zeros)
