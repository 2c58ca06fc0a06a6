"""Scales in a shape that broadcasts over their tensor, and places that stand for all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bitwright.errors import RecipeError
from bitwright.support.array_types import Array


def along_axis(values: Any, axis: int | None, rank: int) -> Any:
    """Return a vector (numpy or torch) in a shape that broadcasts along one axis of `rank` ones.

    A single value broadcasts over everything; without an axis the values stay as they are.

    >>> along_axis(np.ones(3), 1, 4).shape, along_axis(np.ones(1), 1, 4).shape
    ((1, 3, 1, 1), ())
    """
    if math.prod(values.shape) == 1:
        return values.reshape(())
    if axis is None:
        return values
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def broadcast_parameters(
    values: Array, shape: tuple[int, ...], axis: int | None, block_size: int = 0
) -> Array:
    """Return scales or zero points in a shape that broadcasts over a tensor of this shape.

    One value covers the tensor, a vector the channels along `axis`; with `block_size`, each value
    covers a block along `axis`, the last of which may be shorter.
    """
    if values.size == 1:
        return values.reshape(())
    if axis is None or not -len(shape) <= axis < len(shape):
        raise RecipeError(
            f"{values.size} scales or zero points for a tensor of shape {shape} need an "
            f"axis within it, not {axis}."
        )
    axis %= len(shape)
    if block_size:
        blocks = -(-shape[axis] // block_size)
        if values.shape != (*shape[:axis], blocks, *shape[axis + 1 :]):
            raise RecipeError(
                f"blocks of {block_size} along axis {axis} of shape {shape} need {blocks} scales "
                f"there, not shape {values.shape}."
            )
        return np.repeat(values, block_size, axis=axis)[
            (slice(None),) * axis + (slice(shape[axis]),)
        ]
    if values.shape != (shape[axis],):
        raise RecipeError(
            f"axis {axis} of shape {shape} needs {shape[axis]} scales, not shape {values.shape}."
        )
    return np.asarray(along_axis(values, axis, len(shape)))


def some_places(shape: tuple[int, ...], axis: int, most: int) -> tuple[slice, ...]:
    """Return which places of a tensor to look at: all channels, and places evenly apart."""
    axes = [i for i in range(1, len(shape)) if i != axis % len(shape)]
    places = math.prod(shape[i] for i in axes)
    step = math.ceil((places / most) ** (1 / max(len(axes), 1)))
    thin = slice(step // 2, None, step) if step > 1 else slice(None)
    return tuple(thin if i in axes and shape[i] > step else slice(None) for i in range(len(shape)))


# Stacks of matrices ----------------------------------------------------------------------------


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
