"""Values cut where every reader of a tensor saturates, before they are compared.

What a hard-swish reads may be -12 in the float model and -3 in the quantized one, whose range ends
there: both give zero. Such a difference reaches nobody, and is no error.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bitwright.assess.sums import Codes
from bitwright.support.array_types import Array


class Saturation(NamedTuple):
    """Below the first and above the second of two points no reader tells values apart."""

    low: float
    high: float

    def cut(self, expected: Array, actual: Array, codes: Codes | None) -> tuple[Array, Array]:
        """Return both arrays clipped to the saturation points.

        With `codes`, `actual` holds integers: it is cut at the last ones at or beyond the points,
        and what was expected at the numbers that they stand for.
        """
        if self == EVERYWHERE:
            return expected, actual
        if codes is None:
            return np.clip(expected, self.low, self.high), np.clip(actual, self.low, self.high)
        first = max(_to_code(self.low, codes, math.floor), codes.lowest)
        last = min(_to_code(self.high, codes, math.ceil), codes.highest)
        low, high = ((code - codes.zero_point) * codes.scale for code in (first, last))
        # A range that ends before the point cuts off what its readers do tell apart.
        low, high = min(low, self.low), max(high, self.high)
        return np.clip(expected, low, high), np.clip(actual, first, last)


EVERYWHERE = Saturation(-math.inf, math.inf)
"""Readers tell all values apart."""


def _to_code(point: float, codes: Codes, rounded: Any) -> float:
    """Return the integer of a number, or the same infinity."""
    code = point / codes.scale + codes.zero_point
    return float(rounded(code)) if math.isfinite(code) else code
