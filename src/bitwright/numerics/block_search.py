"""Blocks of weights in compiled code: their ranges searched, and rounded and packed, in one pass.

A tile of 64 columns and one block of rows stays in the cache for all grids that it is tried on.
The innermost loops run over columns, which is what vector instructions are made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine

__all__ = ["SHRINK_STEPS", "WORTH_COMPILING", "Search", "is_worth_compiling", "search_blocks"]

SHRINK_STEPS = (0.04, 0.02)
"""What is tried around the best part of a block's range, one after the other: this much less and
this much more."""

WORTH_COMPILING = 1 << 21
"""Weights times grids from which on compiled code is taken: 233,000 weights with nine grids each.

Loading it takes as long as numpy takes for 16 million weights. A model with layers of this size has
about as many.
"""

_LANES = 64

# How many of the last binary digits of a float32 a stored scale has not.
_DROPPED = {"float32": 0, "float16": 13, "bfloat16": 16}


def is_worth_compiling(size: int, grids: int) -> bool:
    """Whether to search in compiled code: by size alone, so that a weight has one result."""
    return size * grids >= WORTH_COMPILING and default_engine() == "numba"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which grids are tried for each block; see `bitwright.numerics.blocks.BlockFormat`."""

    bits: int
    length: int
    """Weights of a block."""
    symmetric: bool
    negative_scales: bool
    scale_type: str
    shrinks: tuple[float, ...]
    steps: tuple[float, ...] = ()


def search_blocks(
    part: Any,
    search: Search,
    measure: Any,
    scales: Any,
    zeros: Any,
    *,
    codes: Any = None,
    code_bits: int = 0,
    fill: int = 0,
) -> bool:
    """Fill in the scales and zero points [blocks, N] of least error for weights [K, N].

    `measure` weighs the rows of all blocks. What is tried, and what of equal ones is taken, is the
    same as in `fit_block_scales`; sums are added up in another order. With `codes` [N, blocks,
    bytes] the weights are rounded and packed as well, in `code_bits` each, rows that are missing
    in the last block as `fill`. Returns whether all weights are finite; if not, nothing is.
    """
    rows, columns = part.shape
    assert part.dtype == scales.dtype == zeros.dtype == np.float32
    assert scales.strides == zeros.strides
    packed = np.empty((0, 0, 1), np.uint8) if codes is None else codes
    return bool(
        compiled(_search, reorder=True)(
            *_flat(part),
            rows,
            columns,
            search.length,
            measure,
            np.asarray(search.shrinks, np.float32),
            np.asarray(search.steps, np.float32),
            np.float32(1 << (search.bits - 1)),
            np.float32((1 << search.bits) - 1),
            np.float32(2 / ((1 << search.bits) - 1)),
            search.symmetric,
            search.negative_scales,
            _DROPPED[search.scale_type],
            _flat(scales)[0],
            *_flat(zeros),
            *_flat(packed)[:3],
            code_bits,
            np.float32(fill),
            _LANES,
        )
    )


def _flat(array: Any) -> tuple[Any, ...]:
    """Return what an array spans as one row, and its strides: one form of the code serves all."""
    strides = [stride // array.itemsize for stride in array.strides]
    span = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    row = np.lib.stride_tricks.as_strided(array, (max(span + 1, 0),), (array.itemsize,))
    return row, *strides


def _search(
    part: Any,
    row_stride: int,
    column_stride: int,
    rows: int,
    columns: int,
    length: int,
    measure: Any,
    shrinks: Any,
    steps: Any,
    middle: Any,
    highest: Any,
    per_step: Any,
    symmetric: bool,
    negative_scales: bool,
    dropped: int,
    scales: Any,
    zeros: Any,
    block_step: int,
    column_step: int,
    codes: Any,
    column_bytes: int,
    block_bytes: int,
    code_bits: int,
    fill: Any,
    lanes: int,
) -> bool:
    """Compiled body of `search_blocks`."""
    smallest = np.float32(2.0**-24) if dropped == 13 else np.float32(2.0**-126)
    nothing, one = np.float32(0), np.float32(1)
    tile = np.empty((length, lanes), np.float32)
    packed = np.empty((length * max(code_bits, 1) // 8 + 1, lanes), np.uint8)
    low, high = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    shrink, base = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    scale, zero = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    digits = scale.view(np.int32)
    inverse, cost = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    bottom, top = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    best, best_shrink = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    best_scale, best_zero = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    tries = shrinks.size + 2 * steps.size
    for block in range(-(-rows // length)):
        start = block * length
        filled = min(length, rows - start)
        for left in range(0, columns, lanes):
            width = min(lanes, columns - left)
            if filled < length or width < lanes:
                tile[:] = nothing  # widens no range: it holds zero anyway, or is symmetric
            if column_stride == 1:
                for row in range(filled):
                    at = (start + row) * row_stride + left
                    source, line = part[at : at + width], tile[row]
                    for c in range(width):
                        line[c] = source[c]
            else:
                for c in range(width):
                    at = (left + c) * column_stride + start * row_stride
                    for row in range(filled):
                        tile[row, c] = part[at + row * row_stride]
            for c in range(lanes):
                low[c] = high[c] = tile[0, c]
                cost[c] = nothing
            for row in range(length):
                for c in range(lanes):
                    low[c] = min(low[c], tile[row, c])
                    high[c] = max(high[c], tile[row, c])
                    # Stays zero for all but NaN and infinity.
                    cost[c] += tile[row, c] * nothing
            for c in range(lanes):
                if cost[c] != nothing:
                    return False
            if not symmetric:
                # Zero belongs to every range; see `fit_block_scales`.
                for c in range(lanes):
                    low[c], high[c] = min(low[c], nothing), max(high[c], nothing)
            for which in range(tries):
                if which < shrinks.size:
                    for c in range(lanes):
                        shrink[c] = shrinks[which]
                else:
                    step = which - shrinks.size
                    if step % 2 == 0:
                        for c in range(lanes):
                            base[c] = best_shrink[c]
                            shrink[c] = base[c] - steps[step // 2]
                    else:
                        for c in range(lanes):
                            shrink[c] = min(base[c] + steps[step // 2], one)
                for c in range(lanes):
                    least, most = low[c] * shrink[c], high[c] * shrink[c]
                    if symmetric:
                        if negative_scales:
                            size = (-least if -least >= most else -most) / middle
                        else:
                            size = max(-least, most) * per_step
                    else:
                        size = (most - least) / highest
                    scale[c] = inverse[c] = size
                if dropped:
                    # To the nearest number with fewer digits, ties to even.
                    for c in range(lanes):
                        odd = (digits[c] >> dropped) & 1
                        digits[c] = (digits[c] + (1 << (dropped - 1)) - 1 + odd) & (-1 << dropped)
                if dropped == 13:
                    for c in range(lanes):
                        # Below the least normal float16 all have the same step.
                        if abs(inverse[c]) < np.float32(2.0**-14):
                            count = np.rint(inverse[c] * np.float32(2.0**24))
                            scale[c] = count * np.float32(2.0**-24)
                for c in range(lanes):
                    size = inverse[c]
                    tiny = -smallest if size < nothing else smallest
                    tiny = one if size == nothing else tiny
                    stored = tiny if abs(scale[c]) < smallest else scale[c]
                    scale[c], inverse[c] = stored, one / stored
                    found = min(max(np.rint(-low[c] * shrink[c] / stored), nothing), highest)
                    zero[c] = middle if symmetric or low[c] == high[c] else found
                    bottom[c], top[c] = -zero[c], highest - zero[c]
                    cost[c] = nothing
                if tries > 1:
                    for row in range(length):
                        weight = measure[start + row]
                        for c in range(lanes):
                            value = tile[row, c] * inverse[c]
                            error = min(max(np.rint(value), bottom[c]), top[c]) - value
                            cost[c] += weight * (error * error)
                for c in range(lanes):
                    found = cost[c] * scale[c] * scale[c]
                    better = which == 0 or found < best[c]
                    best[c] = found if better else best[c]
                    best_shrink[c] = shrink[c] if better else best_shrink[c]
                    best_scale[c] = scale[c] if better else best_scale[c]
                    best_zero[c] = zero[c] if better else best_zero[c]
            for c in range(width):
                at = block * block_step + (left + c) * column_step
                scales[at], zeros[at] = best_scale[c], best_zero[c]
            if code_bits == 0:
                continue
            for row in range(filled):
                for c in range(lanes):
                    found = np.rint(tile[row, c] / best_scale[c]) + best_zero[c]
                    tile[row, c] = min(max(found, nothing), highest)
            for row in range(filled, length):
                for c in range(lanes):
                    tile[row, c] = fill
            size = length * code_bits // 8
            if code_bits == 8:
                for byte in range(size):
                    for c in range(lanes):
                        packed[byte, c] = np.uint8(tile[byte, c])
            elif code_bits == 4:
                for byte in range(size):
                    first, second, line = tile[2 * byte], tile[2 * byte + 1], packed[byte]
                    for c in range(lanes):
                        line[c] = np.uint8(first[c] + np.float32(16) * second[c])
            else:
                for byte in range(size):
                    first, second = tile[4 * byte], tile[4 * byte + 1]
                    third, fourth, line = tile[4 * byte + 2], tile[4 * byte + 3], packed[byte]
                    for c in range(lanes):
                        pair = third[c] + np.float32(4) * fourth[c]
                        line[c] = np.uint8(
                            first[c] + np.float32(4) * second[c] + np.float32(16) * pair
                        )
            for c in range(width):
                at = (left + c) * column_bytes + block * block_bytes
                target = codes[at : at + size]
                for byte in range(size):
                    target[byte] = packed[byte, c]
    return True
