"""SQuant: flip roundings of a convolution so that the errors of each kernel and output cancel.

C. Guo et al., "SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation" (2022,
arXiv:2202.07471). What a kernel reads is much the same from place to place, so that the sum of its
errors does the most harm: it shifts the whole channel. Rounded to the nearest, the errors of n
weights add up to sqrt(n / 12) steps as a rule. Flipping a few of them, those closest to the middle,
leaves half a step in each kernel, and then half a step in each output; it takes no data.
"""

from __future__ import annotations

import numpy as np

from bitwright.numerics.broadcasting import along_axis
from bitwright.plan import Parameters
from bitwright.support.array_types import F64, Array

# Weights worked on at once: their copies in float64 must not be the largest arrays of a job.
_CHUNK = 1 << 18


def flip_by_squant(weights: Array, nearest: Array, parameters: Parameters) -> Array:
    """Return the integers of a weight (output, input, kernel...), the errors of outputs cancelled.

    They come rounded to nearest. Each stays its weight rounded up or down; what is clipped stays
    so, and its neighbours make up for it as far as they can.
    """
    integers = np.ascontiguousarray(nearest)
    if weights.size == 0 or weights.ndim < 3:
        return integers
    scale, zero = (
        along_axis(np.asarray(values), parameters.axis, weights.ndim)
        for values in (np.float32(parameters.scale), parameters.zero_point)
    )
    outputs = max(1, _CHUNK * weights.shape[0] // weights.size)
    for start in range(0, weights.shape[0], outputs):
        some = slice(start, start + outputs)
        exact = weights[some] / _part(scale, some).astype(np.float64) + _part(zero, some)
        kernels = _Kernels(exact, integers[some], parameters)
        kernels.flip_within_kernels()
        kernels.flip_within_outputs()
        integers[some] = kernels.rounded.reshape(exact.shape)
    return integers


def _part(values: Array, outputs: slice) -> Array:
    return values[outputs] if values.ndim and len(values) > 1 else values


class _Kernels:
    """The kernels of some outputs, one row each."""

    def __init__(self, exact: F64, integers: Array, parameters: Parameters) -> None:
        self._outputs, self._inputs = exact.shape[:2]
        exact = exact.reshape(self._outputs * self._inputs, -1)
        self.rounded = integers.reshape(exact.shape).astype(np.float64)
        within = np.clip(exact, parameters.qtype.lowest, parameters.qtype.highest)
        self._residual = within - self.rounded
        """Exact minus rounded, within the type: a positive one can be flipped up, others down."""
        self._sums = (exact - self.rounded).sum(axis=1)
        """The residual of each kernel, clipping included."""

    def flip_within_kernels(self) -> None:
        """Flip roundings until the residual of each kernel is half a step at most."""
        rows = np.flatnonzero(np.abs(self._sums) > 0.5)
        while rows.size:
            rows = rows[self._flip(rows, np.sign(self._sums[rows]))]
            rows = rows[np.abs(self._sums[rows]) > 0.5]

    def flip_within_outputs(self) -> None:
        """Flip one more in some kernels, until each output has half a step of residual at most."""
        by_output = self._sums.reshape(self._outputs, self._inputs)  # a view: it changes with them
        idle = np.ones(by_output.shape, bool)
        rows = np.flatnonzero(np.abs(by_output.sum(axis=1)) > 0.5)
        while rows.size:
            signs = np.sign(by_output[rows].sum(axis=1))
            # The residual of such a kernel is at most a step the other way then.
            gains = np.where(idle[rows], by_output[rows] * signs[:, None], 0.0)
            kernels = gains.argmax(axis=1)
            found = gains[np.arange(rows.size), kernels] > 0
            rows, kernels, signs = rows[found], kernels[found], signs[found]
            idle[rows, kernels] = False
            self._flip(rows * self._inputs + kernels, signs)
            rows = rows[np.abs(by_output[rows].sum(axis=1)) > 0.5]

    def _flip(self, rows: Array, signs: F64) -> Array:
        """Flip the rounding closest to the middle in each of these kernels; return where."""
        residual = self._residual[rows] * signs[:, None]
        columns = residual.argmax(axis=1)
        found: Array = residual[np.arange(rows.size), columns] > 0
        rows, columns, signs = rows[found], columns[found], signs[found]
        self.rounded[rows, columns] += signs
        self._residual[rows, columns] -= signs
        self._sums[rows] -= signs
        return found
