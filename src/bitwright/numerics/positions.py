"""Fixed-point positions: the power-of-two scale that serves a tensor's values best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine
from bitwright.numerics.scales import middle_of, nearest_power_of_two
from bitwright.numerics.types import QType
from bitwright.support.array_types import F64, Array

# One scale coarser than the range asks for, and three finer ones, which clip.
_OFFSETS = np.arange(-1.0, 4.0)

# Scales are stored in float32, as normal numbers.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127

# Values at a time: the temporaries stay in the cache, and BLAS adds them up on one thread, which
# from ten thousand values on it shares with others that wait for each other longer than they work.
_CHUNK = 1 << 13

# Values from which on compiled code is faster, its loading counted in.
_MIN_COMPILED_VALUES = 1 << 22


@dataclass(frozen=True, slots=True, order=True)
class PositionGrid:
    """The integers from `qmin` to `qmax`, at a power-of-two scale 2**-position still to be found.

    Centred grids have zero in their middle; in others it lies where the range of the values has
    it. The candidates and the order in which ties are decided are those of the Vitis AI tools.
    """

    qmin: int
    qmax: int
    centred: bool

    @classmethod
    def of(
        cls, qtype: QType, *, centred: bool, symmetric: bool = False, reduced: bool = False
    ) -> PositionGrid:
        """Return the grid over the bounds that a type has for `symmetric` and `reduced` ranges."""
        return cls(*qtype.bounds(symmetric=symmetric, reduced=reduced), centred)

    def candidates(self, low: float, high: float) -> tuple[F64, float] | None:
        """Return the scales to try for this range, coarsest first, and the zero point of all.

        A range without width has nothing to try: None.
        """
        low, high = min(low, 0.0), max(high, 0.0)
        width = 2 * max(-low, high) if self.centred else high - low
        exact = width / (self.qmax - self.qmin)
        if exact < _SMALLEST:
            return None
        scales = float(nearest_power_of_two(exact)) * np.exp2(-_OFFSETS)
        return np.clip(scales, _SMALLEST, _LARGEST), self._zero_point(low, exact)

    def ends(self, position: int, low: float, high: float) -> tuple[float, float]:
        """Return the least and the largest value at a position, for values in this range."""
        low, high = min(low, 0.0), max(high, 0.0)
        zero_point = self._zero_point(low, (high - low) / (self.qmax - self.qmin))
        scale = 2.0**-position
        return (self.qmin - zero_point) * scale, (self.qmax - zero_point) * scale

    def best_position(self, values: Array) -> int | None:
        """Return the position with the least squared error of these values, the first of several.

        Every value counts as it is: no histogram. What is not finite does not count; where all
        the rest is zero, or nothing is left, there is no best: None.
        """
        flat = values.reshape(-1)
        finite = np.isfinite(flat)
        if not finite.all():
            flat = flat[finite]
        if not flat.size:
            return None
        found = self.candidates(float(flat.min()), float(flat.max()))
        if found is None:
            return None
        scales, zero_point = found
        best = int(np.argmin(self.squared_errors(flat, scales, zero_point)))
        return round(-float(np.log2(scales[best])))

    def squared_errors(
        self, values: Array, scales: F64, zero_point: float, *, engine: str | None = None
    ) -> F64:
        """Return the sum of squared errors at each scale, in float64."""
        bottom, top = self.qmin - zero_point, self.qmax - zero_point
        errors = np.zeros(scales.shape)
        if engine is None:  # for a few values the compiler is not worth loading
            engine = default_engine() if values.size > _MIN_COMPILED_VALUES else "numpy"
        if engine == "numba":
            values = np.ascontiguousarray(values).reshape(-1)
            compiled(_sum_squares, reorder=True)(values, scales, bottom, top, errors)
            return errors
        for start in range(0, values.size, _CHUNK):
            chunk = values[start : start + _CHUNK].astype(np.float64)
            for index, scale in enumerate(scales):
                error = chunk * (1.0 / scale)  # exact: a power of two
                np.rint(error, out=error)
                np.clip(error, bottom, top, out=error)
                error *= scale
                error -= chunk
                errors[index] += error @ error
        return errors

    def _zero_point(self, low: float, exact: float) -> float:
        """Return where zero lies, the same for all scales: clipping is shared by both sides."""
        if self.centred or not exact:
            return float(middle_of(self.qmin, self.qmax))
        return float(np.clip(np.rint(self.qmin - low / exact), self.qmin, self.qmax))


def _sum_squares(values: Any, scales: Any, bottom: float, top: float, errors: Any) -> None:
    """Compiled body of `PositionGrid.squared_errors`."""
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK]
        for which in range(scales.size):
            scale, steps = scales[which], 1.0 / scales[which]
            found = 0.0
            for i in range(chunk.size):
                value = np.float64(chunk[i])
                near = min(max(np.rint(value * steps), bottom), top)
                error = near * scale - value
                found += error * error
            errors[which] += found
