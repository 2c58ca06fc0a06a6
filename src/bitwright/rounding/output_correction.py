"""Least squares between the outputs of a float layer and of its quantized form, by channel.

With y the output of the quantized layer, f the function behind it and z what the float model has
behind the same function, the shift s of a channel is the one of least squared error behind f:

    sum (z - f(y + s))^2,  to first order  s = sum f'(y) (z - f(y)) / sum f'(y)^2

Where no function follows, that is the mean of z - y. Where one does, only values count that it lets
through: a mean over all of them is that of the background, which a Relu or SiLU suppresses, and
would move the few strong responses by what they do not need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["OutputMoments", "squared_error"]

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]
Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class OutputMoments:
    """Sums over the outputs of a layer, one for each channel; they add up over samples.

    >>> identity = lambda array: array
    >>> seen = OutputMoments.of(np.array([[3.0, 1.0]]), np.array([[2.0, 1.0]]), identity, -1)
    >>> seen.shift()
    array([1., 0.])
    """

    slopes: F64
    """Sum of f'(y)^2."""
    errors: F64
    """Sum of f'(y) (z - f(y))."""

    @classmethod
    def nothing(cls) -> OutputMoments:
        """Return the sums over no sample, whose shift is 0 in all channels."""
        return cls(np.zeros(1), np.zeros(1))

    @classmethod
    def of(cls, wanted: Array, given: Array, function: Function, axis: int) -> OutputMoments:
        """Return the sums of one sample: z, y, and the function behind y."""
        result = function(given)
        error = by_channel(wanted, axis) - by_channel(result, axis)
        step = float(np.sqrt(np.mean(error**2))) if error.size else 0.0
        if step == 0.0:
            nothing = np.zeros(error.shape[1])
            return cls(nothing, nothing)
        # Slopes over as much as outputs are off by: what lies closer to a kink is on both sides.
        slope = by_channel(function(given + given.dtype.type(step)), axis)
        slope = (slope - by_channel(function(given - given.dtype.type(step)), axis)) / (2 * step)
        return cls((slope**2).sum(axis=0), (slope * error).sum(axis=0))

    def __or__(self, other: OutputMoments) -> OutputMoments:
        return OutputMoments(self.slopes + other.slopes, self.errors + other.errors)

    def shift(self) -> F64:
        """Return the shift of each channel; 0 where nothing passes the function."""
        return np.divide(
            self.errors, self.slopes, out=np.zeros_like(self.errors), where=self.slopes > 0
        )


def by_channel(array: Array, axis: int) -> F64:
    """Return an array as rows of one number a channel.

    >>> by_channel(np.zeros((1, 3, 8, 8)), 1).shape
    (64, 3)
    """
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).astype(np.float64)


def squared_error(wanted: Array, given: Array) -> float:
    """Return the sum of squared differences.

    >>> squared_error(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    4.0
    """
    return float(np.sum(np.square(wanted.astype(np.float64) - given)))
