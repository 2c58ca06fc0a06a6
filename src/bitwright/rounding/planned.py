"""Round each weight to the nearest level of its grid, or by SQuant where its plan says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.numerics.quantize import quantize
from bitwright.plan import Parameters
from bitwright.rounding.squant import flip_by_squant

__all__ = ["round_as_planned", "round_to_nearest"]


def round_as_planned(weights: npt.NDArray[Any], parameters: Parameters) -> npt.NDArray[Any]:
    """Return the integers of a weight or bias under its final parameters, by its own method.

    >>> from bitwright.numerics.types import INT8
    >>> plain = Parameters(INT8, np.float64(1), np.int64(0))
    >>> round_as_planned(np.array([[[0.4, 0.4]]]), plain)
    array([[[0, 0]]], dtype=int8)
    """
    integers = round_to_nearest(weights, parameters)
    if parameters.rounding == "squant":
        return flip_by_squant(weights, integers, parameters)
    return integers


def round_to_nearest(weights: npt.NDArray[Any], parameters: Parameters) -> npt.NDArray[Any]:
    """Return the integers of a weight or bias under its final parameters.

    >>> from bitwright.numerics.types import INT8
    >>> round_to_nearest(np.array([0.26, -0.5]), Parameters(INT8, np.float64(0.25), np.int64(0)))
    array([ 1, -2], dtype=int8)
    """
    scale = np.asarray(parameters.scale)
    return quantize(
        weights,
        scale if parameters.qtype.bits == 32 else scale.astype(np.float32),
        parameters.zero_point,
        parameters.qtype,
        axis=parameters.axis,
        block_size=parameters.block_size,
    )
