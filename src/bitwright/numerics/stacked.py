"""Stacks of weights, such as the experts of a mixture, as one matrix and back.

Every output of every weight is a column, so what rounds a matrix column by column rounds a stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bitwright.support.array_types import Array


def as_matrix(array: Array, *, transposed: bool) -> Array:
    """Return weights [..., K, N], or [..., N, K] if `transposed`, as [K, all outputs]."""
    rows = np.moveaxis(array, -1 if transposed else -2, 0)
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))


def as_stack(matrix: Any, leading: Sequence[int], *, transposed: bool) -> Any:
    """Return [rows, all outputs] as [*leading, rows, N], or [*leading, N, rows] if `transposed`.

    Arrays of numpy and tensors of torch alike.
    """
    rows, columns = matrix.shape
    stacked = matrix.reshape(rows, *leading, columns // math.prod(leading))
    axis = -1 if transposed else -2
    return (
        np.moveaxis(stacked, 0, axis)
        if isinstance(stacked, np.ndarray)
        else stacked.movedim(0, axis)
    )
