"""Round each weight to the nearest level of its grid, or by SQuant where its plan says so."""

from __future__ import annotations

import numpy as np

from bitwright.numerics.quantize import quantize
from bitwright.plan import Parameters
from bitwright.rounding.squant import flip_by_squant
from bitwright.support.array_types import Array

__all__ = ["round_as_planned", "round_to_nearest"]


def round_as_planned(weights: Array, parameters: Parameters) -> Array:
    """Return the integers of a weight or bias under its final parameters, by its own method."""
    integers = round_to_nearest(weights, parameters)
    if parameters.rounding == "squant":
        return flip_by_squant(weights, integers, parameters)
    return integers


def round_to_nearest(weights: Array, parameters: Parameters) -> Array:
    """Return the integers of a weight or bias under its final parameters."""
    scale = np.asarray(parameters.scale)
    return quantize(
        weights,
        scale if parameters.qtype.bits == 32 else scale.astype(np.float32),
        parameters.zero_point,
        parameters.qtype,
        axis=parameters.axis,
        block_size=parameters.block_size,
    )
