"""Blocks of weights in compiled code: their ranges searched, and rounded and packed, in one pass.

A tile of 64 columns and one block of rows stays in the cache for all grids that it is tried on.
The innermost loops run over columns, which is what vector instructions are made for. Every step of
the search is a function of its own, compiled with those that call it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine

SHRINK_STEPS = (0.04, 0.02)
"""Steps by which the best share of a block's range is then changed, down and up, one by one."""

MIN_COMPILED_WORK = 1 << 21
"""Weights times grids from which on compiled code is taken: 233,000 weights with nine grids each.

Loading it takes as long as numpy takes for 16 million weights. A model with layers of this size has
about as many.
"""

_LANES = 64

DROPPED_DIGITS = {"float32": 0, "float16": 13, "bfloat16": 16}
"""How many of the last binary digits of a float32 a stored scale has not."""
_DROPPED_BY_FLOAT16 = DROPPED_DIGITS["float16"]


def is_worth_compiling(size: int, grids: int) -> bool:
    """Whether to search in compiled code: by size alone, so that a weight has one result."""
    return size * grids >= MIN_COMPILED_WORK and default_engine() == "numba"


class Grids(NamedTuple):
    """The grids to try for each block, in the types that compiled code computes in.

    See `bitwright.numerics.blocks.BlockFormat`.
    """

    length: int
    """Weights of a block."""
    measure: Any
    """Weighs the rows of all blocks."""
    shrinks: Any
    steps: Any
    middle: Any
    highest: Any
    per_step: Any
    symmetric: bool
    negative_scales: bool
    dropped: int
    """Binary digits that a stored scale has not."""


def search_blocks(
    part: Any,
    grids: Grids,
    scales: Any,
    zeros: Any,
    *,
    codes: Any = None,
    code_bits: int = 0,
    fill: int = 0,
) -> bool:
    """Fill in the scales and zero points [blocks, N] of least error for weights [K, N].

    What is tried, and what of equal ones is taken, is the same as in `fit_block_scales`; sums are
    added up in another order. With `codes` [N, blocks, bytes] the weights are rounded and packed as
    well, in `code_bits` each, rows that are missing in the last block as `fill`. Returns whether
    all weights are finite; if not, nothing is.
    """
    assert part.dtype == scales.dtype == zeros.dtype == np.float32
    assert scales.strides == zeros.strides
    packed = np.empty((0, 0, 1), np.uint8) if codes is None else codes
    target, column_stride, block_stride, _ = _flat(packed)
    return bool(
        compiled(_search, reorder=True, parts=_STEPS)(
            _Weights(*_flat(part), *part.shape),
            grids,
            _Fitted(_flat(scales)[0], *_flat(zeros)),
            _Codes(target, column_stride, block_stride, code_bits, np.float32(fill)),
        )
    )


class _Weights(NamedTuple):
    """A matrix [rows, columns], as what it spans in memory and its strides."""

    values: Any
    row_stride: int
    column_stride: int
    rows: int
    columns: int


class _Fitted(NamedTuple):
    """Where scales and zero points go."""

    scales: Any
    zeros: Any
    block_stride: int
    column_stride: int


class _Codes(NamedTuple):
    """Where packed codes go; none where they have no bits."""

    values: Any
    column_stride: int
    block_stride: int
    bits: int
    fill: Any


class _Lanes(NamedTuple):
    """A tile's columns: their ranges, the grid that is tried for each, and the best one so far."""

    low: Any
    high: Any
    shrink: Any
    base: Any
    """The best shrink before the two steps around it."""
    scale: Any
    inverse: Any
    zero: Any
    bottom: Any
    top: Any
    cost: Any
    best: Any
    best_shrink: Any
    best_scale: Any
    best_zero: Any


def _flat(array: Any) -> tuple[Any, ...]:
    """Return what an array spans as one row, and its strides: one form of the code serves all."""
    strides = [stride // array.itemsize for stride in array.strides]
    span = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    row = np.lib.stride_tricks.as_strided(array, (max(span + 1, 0),), (array.itemsize,))
    return row, *strides


# The compiled functions: loops over the columns of a tile, which are vector instructions each.


def _search(weights: _Weights, grids: Grids, fitted: _Fitted, codes: _Codes) -> bool:
    """Compiled body of `search_blocks`."""
    length = grids.length
    tile = np.empty((length, _LANES), np.float32)
    packed = np.empty((length * max(codes.bits, 1) // 8 + 1, _LANES), np.uint8)
    of = np.empty((14, _LANES), np.float32)
    lanes = _Lanes(
        *(of[0], of[1], of[2], of[3], of[4], of[5], of[6]),
        *(of[7], of[8], of[9], of[10], of[11], of[12], of[13]),
    )
    tries = grids.shrinks.size + 2 * grids.steps.size
    for block in range(-(-weights.rows // length)):
        start = block * length
        for left in range(0, weights.columns, _LANES):
            width = min(_LANES, weights.columns - left)
            _load_tile(weights, start, left, tile)
            if not _find_range(tile, grids.symmetric, lanes):
                return False
            for which in range(tries):
                _choose_shrink(which, grids, lanes)
                _propose_scale(grids, lanes)
                if grids.dropped:
                    _drop_digits(grids.dropped, lanes)
                _fit_zero(grids, lanes)
                if tries > 1:
                    _measure_error(tile, grids.measure[start : start + length], lanes)
                _keep_best(which == 0, lanes)
            for c in range(width):
                at = block * fitted.block_stride + (left + c) * fitted.column_stride
                fitted.scales[at], fitted.zeros[at] = lanes.best_scale[c], lanes.best_zero[c]
            if codes.bits == 0:
                continue
            _round_tile(tile, min(length, weights.rows - start), grids.highest, codes.fill, lanes)
            size = length * codes.bits // 8
            _pack_tile(tile, codes.bits, size, packed)
            for c in range(width):
                at = (left + c) * codes.column_stride + block * codes.block_stride
                target = codes.values[at : at + size]
                for byte in range(size):
                    target[byte] = packed[byte, c]
    return True


def _load_tile(weights: _Weights, start: int, left: int, tile: Any) -> None:
    """Copy a block of rows of some columns; what is missing is zero."""
    filled = min(tile.shape[0], weights.rows - start)
    width = min(_LANES, weights.columns - left)
    if filled < tile.shape[0] or width < _LANES:
        tile[:] = np.float32(0)  # widens no range: it holds zero anyway, or is symmetric
    if weights.column_stride == 1:
        for row in range(filled):
            at = (start + row) * weights.row_stride + left
            source, line = weights.values[at : at + width], tile[row]
            for c in range(width):
                line[c] = source[c]
    else:
        for c in range(width):
            at = (left + c) * weights.column_stride + start * weights.row_stride
            for row in range(filled):
                tile[row, c] = weights.values[at + row * weights.row_stride]


def _find_range(tile: Any, symmetric: bool, lanes: _Lanes) -> bool:
    """Find the range of each column; return whether all weights are finite."""
    nothing = np.float32(0)
    low, high, cost = lanes.low, lanes.high, lanes.cost
    for c in range(_LANES):
        low[c] = high[c] = tile[0, c]
        cost[c] = nothing
    for row in range(tile.shape[0]):
        for c in range(_LANES):
            low[c] = min(low[c], tile[row, c])
            high[c] = max(high[c], tile[row, c])
            # Stays zero for all but NaN and infinity.
            cost[c] += tile[row, c] * nothing
    for c in range(_LANES):
        if cost[c] != nothing:
            return False
    if not symmetric:
        # Zero belongs to every range; see `fit_block_scales`.
        for c in range(_LANES):
            low[c], high[c] = min(low[c], nothing), max(high[c], nothing)
    return True


def _choose_shrink(which: int, grids: Grids, lanes: _Lanes) -> None:
    """Set which part of its range is tried: those given, then steps around the best of a column."""
    shrink, base, best_shrink = lanes.shrink, lanes.base, lanes.best_shrink
    if which < grids.shrinks.size:
        for c in range(_LANES):
            shrink[c] = grids.shrinks[which]
        return
    step = which - grids.shrinks.size
    if step % 2 == 0:
        for c in range(_LANES):
            base[c] = best_shrink[c]
            shrink[c] = base[c] - grids.steps[step // 2]
    else:
        for c in range(_LANES):
            shrink[c] = min(base[c] + grids.steps[step // 2], np.float32(1))


def _propose_scale(grids: Grids, lanes: _Lanes) -> None:
    """Set the scale that covers the part of the range, in full precision."""
    low, high, shrink = lanes.low, lanes.high, lanes.shrink
    scale, inverse = lanes.scale, lanes.inverse
    for c in range(_LANES):
        least, most = low[c] * shrink[c], high[c] * shrink[c]
        if grids.symmetric:
            if grids.negative_scales:
                size = (-least if -least >= most else -most) / grids.middle
            else:
                size = max(-least, most) * grids.per_step
        else:
            size = (most - least) / grids.highest
        scale[c] = inverse[c] = size


def _drop_digits(dropped: int, lanes: _Lanes) -> None:
    """Round scales to the nearest number with fewer binary digits, ties to even."""
    scale, exact = lanes.scale, lanes.inverse
    digits = scale.view(np.int32)
    for c in range(_LANES):
        odd = (digits[c] >> dropped) & 1
        digits[c] = (digits[c] + (1 << (dropped - 1)) - 1 + odd) & (-1 << dropped)
    if dropped == _DROPPED_BY_FLOAT16:
        for c in range(_LANES):
            # Below the least normal float16 all have the same step.
            if abs(exact[c]) < np.float32(2.0**-14):
                count = np.rint(exact[c] * np.float32(2.0**24))
                scale[c] = count * np.float32(2.0**-24)


def _fit_zero(grids: Grids, lanes: _Lanes) -> None:
    """Set the zero point, the stored scale and its inverse, and the bounds of what is rounded."""
    nothing, one = np.float32(0), np.float32(1)
    smallest = np.float32(2.0**-24 if grids.dropped == _DROPPED_BY_FLOAT16 else 2.0**-126)
    low, high, shrink = lanes.low, lanes.high, lanes.shrink
    scale, inverse, zero = lanes.scale, lanes.inverse, lanes.zero
    bottom, top, cost = lanes.bottom, lanes.top, lanes.cost
    for c in range(_LANES):
        size = inverse[c]
        tiny = -smallest if size < nothing else smallest
        tiny = one if size == nothing else tiny
        stored = tiny if abs(scale[c]) < smallest else scale[c]
        scale[c], inverse[c] = stored, one / stored
        found = min(max(np.rint(-low[c] * shrink[c] / stored), nothing), grids.highest)
        zero[c] = grids.middle if grids.symmetric or low[c] == high[c] else found
        bottom[c], top[c] = -zero[c], grids.highest - zero[c]
        cost[c] = nothing


def _measure_error(tile: Any, measure: Any, lanes: _Lanes) -> None:
    """Add up the weighted squared error of each column, in steps of its grid."""
    inverse, bottom, top, cost = lanes.inverse, lanes.bottom, lanes.top, lanes.cost
    for row in range(tile.shape[0]):
        weight = measure[row]
        for c in range(_LANES):
            value = tile[row, c] * inverse[c]
            error = min(max(np.rint(value), bottom[c]), top[c]) - value
            cost[c] += weight * (error * error)


def _keep_best(is_first: bool, lanes: _Lanes) -> None:
    """Keep the grid of each column that has less error than those before it."""
    cost, scale, zero, shrink = lanes.cost, lanes.scale, lanes.zero, lanes.shrink
    best, best_shrink = lanes.best, lanes.best_shrink
    best_scale, best_zero = lanes.best_scale, lanes.best_zero
    for c in range(_LANES):
        found = cost[c] * scale[c] * scale[c]
        better = is_first or found < best[c]
        best[c] = found if better else best[c]
        best_shrink[c] = shrink[c] if better else best_shrink[c]
        best_scale[c] = scale[c] if better else best_scale[c]
        best_zero[c] = zero[c] if better else best_zero[c]


def _round_tile(tile: Any, filled: int, highest: Any, fill: Any, lanes: _Lanes) -> None:
    """Put the codes of a tile in the place of its weights; rows that are missing are `fill`."""
    best_scale, best_zero = lanes.best_scale, lanes.best_zero
    for row in range(filled):
        for c in range(_LANES):
            found = np.rint(tile[row, c] / best_scale[c]) + best_zero[c]
            tile[row, c] = min(max(found, np.float32(0)), highest)
    for row in range(filled, tile.shape[0]):
        for c in range(_LANES):
            tile[row, c] = fill


def _pack_tile(tile: Any, bits: int, size: int, packed: Any) -> None:
    """Pack codes of 8, 4 or 2 bits, the first of a byte in its lowest bits."""
    if bits == 8:
        for byte in range(size):
            for c in range(_LANES):
                packed[byte, c] = np.uint8(tile[byte, c])
    elif bits == 4:
        for byte in range(size):
            first, second, line = tile[2 * byte], tile[2 * byte + 1], packed[byte]
            for c in range(_LANES):
                line[c] = np.uint8(first[c] + np.float32(16) * second[c])
    else:
        for byte in range(size):
            first, second = tile[4 * byte], tile[4 * byte + 1]
            third, fourth, line = tile[4 * byte + 2], tile[4 * byte + 3], packed[byte]
            for c in range(_LANES):
                pair = third[c] + np.float32(4) * fourth[c]
                line[c] = np.uint8(first[c] + np.float32(4) * second[c] + np.float32(16) * pair)


_STEPS = (
    *(_load_tile, _find_range, _choose_shrink, _propose_scale, _drop_digits),
    *(_fit_zero, _measure_error, _keep_best, _round_tile, _pack_tile),
)
"""The functions that `_search` calls."""
