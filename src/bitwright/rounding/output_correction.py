"""Least squares between the outputs of a float layer and of its quantized form, by channel.

With y the output of the quantized layer, f the function behind it and z what the float model has
behind the same function, the shift s of a channel is the one of least squared error behind f:

    sum (z - f(y + s))^2,  to first order  s = sum f'(y) (z - f(y)) / sum f'(y)^2

Where no function follows, that is the mean of z - y. Where one does, only values count that it lets
through: a mean over all of them is that of the background, which a Relu or SiLU suppresses, and
would move the few strong responses by what they do not need.

A gain g beside the shift makes that a regression, f(g y + s), of two equations for each channel.
Few samples say little about a slope: what g differs from 1 by is shrunk by n / (n + n0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from bitwright.support.array_types import F64, Array

SHRINKING_SAMPLES = 16
"""The number of samples that is believed half of the gain that it shows."""
MAX_GAIN = 2.0

Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class OutputMoments:
    """Sums over the outputs of a layer, one for each channel; they add up over samples."""

    samples: int
    slopes: F64
    """Sum of f'(y)^2."""
    errors: F64
    """Sum of f'(y) (z - f(y))."""
    weighted: F64
    """Sum of f'(y)^2 y."""
    squares: F64
    """Sum of f'(y)^2 y^2."""
    products: F64
    """Sum of f'(y) (z - f(y)) y."""

    @classmethod
    def nothing(cls) -> OutputMoments:
        """Return the sums over no sample, which shift no channel."""
        return cls(0, *(np.zeros(1) for _ in range(5)))

    @classmethod
    def of(
        cls, wanted: Array, given: Array, function: Function, axis: int, *, samples: int = 1
    ) -> OutputMoments:
        """Return the sums of some samples, one if not said: z, y, and the function behind y."""
        error = _planes(wanted, axis) - _planes(function(given), axis)
        step = float(np.sqrt(_sum_of_squares(error) / error.size)) if error.size else 0.0
        if step == 0.0:
            return cls(samples, *(np.zeros(error.shape[1]) for _ in range(5)))
        # Slopes over as much as outputs are off by: what lies closer to a kink is on both sides.
        slope = _planes(function(given + given.dtype.type(step)), axis)
        slope -= _planes(function(given - given.dtype.type(step)), axis)
        slope /= 2 * step
        values = _planes(given, axis)
        weighted, product = slope * values, slope * error
        pairs = (
            (slope, slope),
            (slope, error),
            (slope, weighted),
            (weighted, weighted),
            (product, values),
        )
        return cls(samples, *(np.einsum("ncp,ncp->c", one, other) for one, other in pairs))

    def __or__(self, other: OutputMoments) -> OutputMoments:
        names = [field.name for field in fields(self)]
        return OutputMoments(*(getattr(self, name) + getattr(other, name) for name in names))

    def shift(self) -> F64:
        """Return the shift of each channel; 0 where nothing passes the function."""
        return _divide(self.errors, self.slopes)

    def gain_and_shift(self) -> tuple[F64, F64]:
        """Return g and s of each channel, for g y + s; 1 and 0 where nothing passes."""
        mean, shift = _divide(self.weighted, self.slopes), self.shift()
        variance = _divide(self.squares, self.slopes) - mean**2
        slope = _divide(_divide(self.products, self.slopes) - mean * shift, variance)
        # A channel that hardly varies has rounding errors for a variance.
        slope[variance <= 1e-9 * mean**2] = 0.0
        slope *= self.samples / (self.samples + SHRINKING_SAMPLES)
        gain = np.clip(1 + slope, 1 / MAX_GAIN, MAX_GAIN)
        return gain, shift - (gain - 1) * mean


def _divide(one: F64, other: F64) -> F64:
    return np.divide(one, other, out=np.zeros_like(one), where=other > 0)


def _planes(array: Array, axis: int) -> F64:
    """Return an array as planes of (whatever is before, channel, whatever is behind)."""
    axis %= array.ndim
    before, behind = (math.prod(part) for part in (array.shape[:axis], array.shape[axis + 1 :]))
    return array.reshape(before, array.shape[axis], behind).astype(np.float64)


def by_channel(array: Array, axis: int) -> F64:
    """Return an array as rows of one number a channel."""
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]).astype(np.float64)


def squared_error(wanted: Array, given: Array) -> float:
    """Return the sum of squared differences."""
    return _sum_of_squares(np.subtract(wanted, given, dtype=np.float64))


def _sum_of_squares(array: F64) -> float:
    # Not a product of vectors: of these, BLAS makes work for all cores.
    return float(np.square(array).sum())
