"""Symmetric matrices too large for copies: summed, permuted and factored in their own memory.

The Hessian of a layer with 14,336 inputs takes 1.6 GB in float64. Its factor is made where it lies,
panel by panel, and is then turned into float32 there, so that nothing else of its size exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitwright.support.array_types import F32, F64, I64

PANEL = 512
"""Rows and columns that are worked on at once."""


def add_products_(matrix: F64, rows: F32) -> bool:
    """Add x x' of each row to the lower half; return whether all of it is finite."""
    for start in range(0, len(matrix), PANEL):
        stop = start + PANEL
        products = rows[:, start:stop].T @ rows[:, :stop]
        if not np.isfinite(products.sum()):
            return False
        matrix[start:stop, :stop] += products
    return True


def mirror_(matrix: Any) -> None:
    """Fill the upper half of a symmetric matrix from the lower one."""
    for start in range(0, len(matrix), PANEL):
        stop = start + PANEL
        matrix[:start, start:stop] = matrix[start:stop, :start].T
        corner = np.tril(matrix[start:stop, start:stop])
        matrix[start:stop, start:stop] = corner + np.tril(corner, -1).T


def permute_(matrix: Any, order: I64) -> None:
    """Put rows and columns into an order, as `matrix[order][:, order]` would."""
    waiting = np.ones(len(order), bool)
    for first in range(len(order)):
        if not waiting[first]:
            continue
        # One cycle: each row goes where the one before it came from.
        kept, place = matrix[first].copy(), first
        while waiting[place]:
            waiting[place] = False
            source = int(order[place])
            matrix[place] = kept if source == first else matrix[source]
            place = source
    for start in range(0, len(order), PANEL):
        matrix[start : start + PANEL] = matrix[start : start + PANEL][:, order]


def factor_(matrix: F64, added: float) -> bool:
    """Turn H into the lower N of H + added I = N' N; false, and H as it was, where there is none.

    Only the lower half is read and written. The upper half is that of H afterwards, but for
    squares on the diagonal, until N is asked for by `unit_rows_`.
    """
    size = len(matrix)
    starts = range(0, size, PANEL)
    corners = [matrix[s : s + PANEL, s : s + PANEL].copy() for s in starts]
    matrix[np.arange(size), np.arange(size)] += added
    try:
        for start in reversed(starts):
            own = slice(start, min(start + PANEL, size))
            # The Cholesky factor of the rows in opposite order, turned back.
            flipped = np.linalg.cholesky(matrix[own, own][::-1, ::-1])
            corner = np.ascontiguousarray(flipped[::-1, ::-1].T)
            matrix[own, own] = corner
            beside = np.linalg.inv(corner.T) @ matrix[own, :start]
            matrix[own, :start] = beside
            for left in range(0, start, PANEL):
                part = beside[:, left : left + PANEL]
                matrix[left:start, left : left + PANEL] -= beside[:, left:].T @ part
    except np.linalg.LinAlgError:
        for start, corner in zip(starts, corners, strict=True):
            stop = start + PANEL
            matrix[start:stop, :start] = matrix[:start, start:stop].T
            matrix[start:stop, start:stop] = corner
        return False
    return True


def unit_rows_(matrix: F64) -> tuple[F32, F64]:
    """Return a lower factor with each row over its diagonal, in float32, and the diagonal.

    It lies in the memory of the matrix, which is gone where it owns that.
    """
    size = len(matrix)
    diagonal = matrix.diagonal().copy()
    matrix = np.ascontiguousarray(matrix)
    # A row of half the size never reaches into rows that are still to be read.
    halves = matrix.reshape(-1).view(np.float32)
    for row in range(size):
        values = (matrix[row] / diagonal[row]).astype(np.float32)
        values[row + 1 :] = 0
        halves[row * size : (row + 1) * size] = values
    if matrix.flags.owndata:
        del halves
        matrix.resize((-(-size * size // 2),), refcheck=False)
        return matrix.view(np.float32)[: size * size].reshape(size, size), diagonal
    return halves[: size * size].reshape(size, size), diagonal
