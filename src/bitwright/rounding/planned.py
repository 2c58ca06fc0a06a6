"""Round each weight by the method that its plan names."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from bitwright.plan import Parameters
from bitwright.rounding.nearest import round_to_nearest
from bitwright.rounding.squant import round_by_squant

__all__ = ["round_as_planned"]

_ROUNDINGS = {"nearest": round_to_nearest, "squant": round_by_squant}


def round_as_planned(weights: npt.NDArray[Any], parameters: Parameters) -> npt.NDArray[Any]:
    """Return the integers of a weight or bias under its final parameters.

    >>> import numpy as np
    >>> from bitwright.numerics.types import INT8
    >>> plain = Parameters(INT8, np.float64(1), np.int64(0))
    >>> round_as_planned(np.array([[[0.4, 0.4]]]), plain)
    array([[[0, 0]]], dtype=int8)
    """
    return _ROUNDINGS[parameters.rounding](weights, parameters)
