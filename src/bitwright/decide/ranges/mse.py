"""Ranges of least squared error: both ends shrink from the extremes, then move by small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitwright.decide.ranges.density import Levels
from bitwright.numerics.types import QType
from bitwright.support.array_types import F64, Array

_REFINEMENTS = (0.95, 0.975, 0.9875)


def starting_fractions(least: float) -> F64:
    """Return the fractions of the full range to try first, so close that no valley is missed."""
    least = min(max(least, 2.0**-12), 0.4)
    few = int(np.ceil(np.log(0.4 / least) / 0.4))
    return np.concatenate(
        [np.geomspace(least, 0.4, few, endpoint=False), np.linspace(0.4, 1.0, 16)]
    )


def least_error_range(
    low: F64, high: F64, error: Callable[[F64, F64], F64], fractions: F64, one_end: bool
) -> tuple[F64, F64]:
    """Return the ranges within (low, high), an array each, of the least error.

    `error` takes candidates (one row for each range; they broadcast) and returns their errors.
    Both ends shrink together first, then each alone, then both by small steps around the best.
    """
    rows = np.arange(low.size)[:, None]
    best_low, best_high = low[:, None], high[:, None]
    least = error(best_low, best_high)

    def consider(lows: F64, highs: F64) -> None:
        nonlocal best_low, best_high, least
        found = error(lows, highs)
        first = np.argmin(found, axis=1)[:, None]
        of_first = found[rows, first]
        better = of_first < least
        if better.any():
            least = np.where(better, of_first, least)
            best_low = np.where(better, _chosen(lows, rows, first), best_low)
            best_high = np.where(better, _chosen(highs, rows, first), best_high)

    if one_end:
        # One number: the largest magnitude that is kept.
        most = np.maximum(-low, high)[:, None]

        def keep(size: F64) -> None:
            consider(np.maximum(-size, low[:, None]), np.minimum(size, high[:, None]))

        keep(most * fractions)
        for step in _REFINEMENTS:
            root = np.sqrt(step)
            keep(np.maximum(-best_low, best_high) * np.array([step, root, 1 / root, 1 / step]))
        return best_low[:, 0], best_high[:, 0]
    consider(low[:, None] * fractions, high[:, None] * fractions)
    consider(low[:, None] * fractions, best_high)
    consider(best_low, high[:, None] * fractions)
    for step in _REFINEMENTS:
        around = np.array([step, 1.0, 1 / step])
        consider(
            np.maximum(best_low * np.tile(around, 3), low[:, None]),
            np.minimum(best_high * np.repeat(around, 3), high[:, None]),
        )
    return best_low[:, 0], best_high[:, 0]


def _chosen(ends: F64, rows: Any, columns: Any) -> F64:
    """Return one end of each row; a single column stands for all."""
    return ends if ends.shape[1] == 1 else ends[rows, columns]


def row_ranges(
    rows: Array,
    qtype: QType,
    *,
    symmetric: bool = False,
    reduced: bool = False,
    one_end: bool = False,
) -> tuple[F64, F64]:
    """Return the range of least squared error of each row, from its exact values.

    With `one_end` the ends move together, as they do where the levels are symmetric.
    """
    low = np.minimum(rows.min(axis=1), 0).astype(np.float64)
    high = np.maximum(rows.max(axis=1), 0).astype(np.float64)
    # The largest of each row becomes 1, so that no square overflows or vanishes.
    sizes = np.maximum(-low, high)
    sizes[sizes == 0] = 1.0
    # Few rows at a time, so that they and the temporary stay in the cache.
    height = max(1, (1 << 16) // rows.shape[1])
    fractions = starting_fractions(0.05)  # no weight is as long-tailed as an activation can be
    for start in range(0, len(rows), height):
        chosen = slice(start, start + height)
        size = sizes[chosen]
        part = rows[chosen] / size[:, None].astype(rows.dtype)

        def error(lows: F64, highs: F64, part: Array = part) -> F64:
            columns = []
            for a, b in zip(*(ends.T for ends in np.broadcast_arrays(lows, highs)), strict=True):
                levels = Levels.over(
                    a[:, None], b[:, None], qtype, symmetric=symmetric, reduced=reduced
                )
                columns.append(levels.squared_error(part).sum(axis=1, dtype=np.float64))
            return np.stack(columns, axis=1)

        ends = least_error_range(
            low[chosen] / size, high[chosen] / size, error, fractions, symmetric or one_end
        )
        low[chosen] = np.maximum(ends[0] * size, low[chosen])
        high[chosen] = np.minimum(ends[1] * size, high[chosen])
    return low, high
