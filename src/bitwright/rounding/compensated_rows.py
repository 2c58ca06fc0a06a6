"""Rows of a weight rounded one after the other, each once the changes of those before are known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bitwright.numerics import NUMPY, Arrays, compiled, is_worth_compiling, map_rows

RowRounder = Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, Any]]

# Rows that are taken one after the other between two matrix products: they stay in the cache.
_STRIPE = 16

# Columns that compiled code takes through all rows.
_LANES = 128

# How `map_rows` counts the work: pairs of rows in the time that it takes for one number.
_ROW_PAIRS_PER_NUMBER = 8

# Time to round a weight row by row, in grids of a block search.
_EQUIVALENT_GRIDS = 8


def row_rounder(size: int, highest: int, xp: Arrays) -> RowRounder:
    """Return the function that rounds rows of a weight of `size` numbers to codes up to `highest`.

    It takes what to round as far as the rows before these decide it, which it overwrites; the
    weights; what the changes of these rows do to each other [rows, rows]; scales and zero points.
    It returns the codes, by how much they change the weights, and the rounding errors.
    """
    # By size alone, so that a weight has one result.
    if xp is NUMPY and is_worth_compiling(size, _EQUIVALENT_GRIDS):
        return partial(_round_compiled, highest=highest)
    return xp.captured(("gptq", highest), partial(_round, highest=highest, xp=xp))


def _round(
    target: Any, work: Any, within: Any, scales: Any, zeros: Any, *, highest: int, xp: Arrays
) -> tuple[Any, Any, Any]:
    rows, columns = target.shape
    codes, changes = xp.empty(rows, columns), xp.empty(rows, columns)
    for top in range(0, rows, _STRIPE):
        end = min(top + _STRIPE, rows)
        stripe = target[top:end]
        if top:
            stripe += within[top:end, :top] @ changes[:top]
        for row in range(top, end):
            value, scale, zero = target[row], scales[row], zeros[row]
            if row > top:
                value += within[row, top:row] @ changes[top:row]
            code = xp.rint_(value / scale)
            code += zero
            codes[row] = xp.clip_(code, 0, highest)
            code -= zero
            code *= scale
            changes[row] = work[row] - code
            value -= code
    return codes, changes, target


def _round_compiled(
    target: Any, work: Any, within: Any, scales: Any, zeros: Any, *, highest: int
) -> tuple[Any, Any, Any]:
    """Return what `_round` does, up to the order in which it adds."""
    codes, changes = np.empty_like(target), np.empty_like(target)
    loop = compiled(_round_loop)
    arrays = target, work, within, scales, zeros, codes, changes
    rows, columns = target.shape
    map_rows(
        lambda start, stop: loop(arrays, np.float32(highest), start, stop, _LANES),
        columns,
        rows**2 // _ROW_PAIRS_PER_NUMBER,
        unit=_LANES,
    )
    return codes, changes, target


def _round_loop(arrays: Any, highest: Any, start: int, stop: int, lanes: int) -> None:
    """Compiled body of `_round_compiled`: columns from `start` to `stop`."""
    target, work, within, scales, zeros, codes, changes = arrays
    rows = target.shape[0]
    nothing = np.float32(0)
    tile = np.empty((rows, lanes), np.float32)
    value = np.empty(lanes, np.float32)
    for left in range(start, stop, lanes):
        width = min(lanes, stop - left)
        for row in range(rows):
            for c in range(width):
                value[c] = target[row, left + c]
            for before in range(row):
                share = within[row, before]
                change = tile[before]
                for c in range(width):
                    value[c] += share * change[c]
            for c in range(width):
                scale, zero = scales[row, left + c], zeros[row, left + c]
                code = min(max(np.rint(value[c] / scale) + zero, nothing), highest)
                stored = (code - zero) * scale
                codes[row, left + c] = code
                tile[row, c] = work[row, left + c] - stored
                target[row, left + c] = value[c] - stored
            for c in range(width):
                changes[row, left + c] = tile[row, c]
