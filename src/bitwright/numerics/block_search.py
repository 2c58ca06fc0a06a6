"""The search for the scales of blocks in compiled code: one pass over a weight for all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine

__all__ = ["WORTH_COMPILING", "is_worth_compiling", "search_scales"]

WORTH_COMPILING = 1 << 24
"""Weights times grids from which on compiled code is faster, its loading counted in."""


def is_worth_compiling(size: int, grids: int) -> bool:
    """Whether to search in compiled code: by size alone, so that a weight has one result."""
    return size * grids >= WORTH_COMPILING and default_engine() == "numba"


def search_scales(
    part: Any,
    ends: tuple[Any, Any],
    measure: Any,
    shrinks: Any,
    *,
    bits: int,
    symmetric: bool,
    negative_scales: bool,
    half: bool,
) -> tuple[Any, Any]:
    """Return the scales and zero points [n, N] of least error for blocks [n, length, N].

    `ends` are the extremes of each block, `measure` weighs its rows [n, length], `half` says
    whether scales are float16. What is tried, and what of equal ones is taken, is the same as in
    `fit_block_scales`; sums are added up in another order.
    """
    low, high = ends
    scales, zeros = np.empty_like(low), np.empty_like(low)
    compiled(_search, reorder=True)(
        np.ascontiguousarray(part),
        low,
        high,
        np.ascontiguousarray(measure),
        np.asarray(shrinks, np.float32),
        np.float32(1 << (bits - 1)),
        np.float32((1 << bits) - 1),
        np.float32(2 / ((1 << bits) - 1)),
        symmetric,
        negative_scales,
        half,
        scales,
        zeros,
    )
    return scales, zeros


def _search(
    part: Any,
    low: Any,
    high: Any,
    measure: Any,
    shrinks: Any,
    middle: Any,
    highest: Any,
    per_step: Any,
    symmetric: bool,
    negative_scales: bool,
    half: bool,
    scales: Any,
    zeros: Any,
) -> None:
    """Compiled body of `search_scales`; the innermost loops run over columns."""
    blocks, length, columns = part.shape
    smallest = 2.0**-24 if half else 2.0**-126
    scale, zero = np.empty(columns, np.float32), np.empty(columns, np.float32)
    inverse, cost = np.empty(columns, np.float32), np.empty(columns, np.float32)
    bottom, top = np.empty(columns, np.float32), np.empty(columns, np.float32)
    best = np.empty(columns, np.float32)
    for block in range(blocks):
        for which in range(shrinks.size):
            shrink = shrinks[which]
            for c in range(columns):
                least, most = low[block, c] * shrink, high[block, c] * shrink
                if symmetric:
                    if negative_scales:
                        size = (-least if -least >= most else -most) / middle
                    else:
                        size = max(-least, most) * per_step
                else:
                    least, most = min(least, np.float32(0)), max(most, np.float32(0))
                    size = (most - least) / highest
                stored = size
                if half and size != 0:
                    # Eleven digits, fewer below the least normal number.
                    digits = 11 - max(math.frexp(size)[1], -13)
                    stored = np.float32(math.ldexp(np.rint(math.ldexp(size, digits)), -digits))
                if abs(stored) < smallest:
                    if size == 0:
                        stored = np.float32(1)
                    else:
                        stored = np.float32(-smallest) if size < 0 else np.float32(smallest)
                scale[c], inverse[c] = stored, np.float32(1) / stored
                if symmetric or least == most:
                    zero[c] = middle
                else:
                    zero[c] = min(max(np.rint(-least / stored), np.float32(0)), highest)
                bottom[c], top[c] = -zero[c], highest - zero[c]
                cost[c] = 0
            for row in range(length):
                weight = measure[block, row]
                for c in range(columns):
                    steps = part[block, row, c] * inverse[c]
                    error = min(max(np.rint(steps), bottom[c]), top[c]) - steps
                    cost[c] += weight * error * error
            for c in range(columns):
                found = cost[c] * scale[c] * scale[c]
                if which == 0 or found < best[c]:
                    best[c] = found
                    scales[block, c], zeros[block, c] = scale[c], zero[c]
