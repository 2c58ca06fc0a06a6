"""Round each weight to the nearest level of its grid, or by SQuant where its plan says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitwright.numerics.quantize import quantize
from bitwright.plan import Parameters
from bitwright.rounding.squant import flip_by_squant
from bitwright.support.array_types import Array


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


class RoundOnce:
    """Rounds as planned, and by SQuant each weight of a model once for each scale.

    A job does so several times: to correct biases, for each candidate, and for what it writes.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Array, Array]] = {}

    def __call__(self, weights: Array, parameters: Parameters) -> Array:
        """Return the integers of a weight or bias under its final parameters."""
        if parameters.rounding != "squant":
            return round_as_planned(weights, parameters)
        scale, zero = np.asarray(parameters.scale), np.asarray(parameters.zero_point)
        # The array is kept, so that no other one comes to lie where it does.
        place = weights.__array_interface__["data"][0], weights.shape, weights.strides
        key = (*place, parameters.qtype, parameters.axis, scale.tobytes(), zero.tobytes())
        if key not in self._known:
            self._known[key] = weights, round_as_planned(weights, parameters)
        return self._known[key][1].copy()
