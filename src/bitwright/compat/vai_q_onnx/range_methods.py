"""Calibration methods of the Vitis AI quantizer, as range methods and scales of a recipe."""

from __future__ import annotations

from enum import Enum
from typing import Any

from bitwright.compat.onnxruntime.range_methods import (
    CALIBRATION_METHODS,
    RangeChoice,
    check_settings,
)
from bitwright.compat.options import RecipeParts
from bitwright.compat.vai_q_onnx.enums import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from bitwright.errors import RecipeError
from bitwright.recipe import MSE, LayerwisePercentile, MinMax, MinMSE, NonOverflow, RangeMethod

__all__ = ["choose_ranges"]

_METHODS: dict[Enum, RangeChoice] = {
    **CALIBRATION_METHODS,
    PowerOfTwoMethod.NonOverflow: RangeChoice(NonOverflow),
    PowerOfTwoMethod.MinMSE: RangeChoice(MinMSE, ("mode",)),
    LayerWiseMethod.LayerWisePercentile: RangeChoice(LayerwisePercentile, ("candidates", "metric")),
    ExtendedCalibrationMethod.MinMSE: RangeChoice(MSE),
    Int16Method.MinMax: RangeChoice(MinMax),
}

# The same aim with scales M/2^N, which are finer than powers of two: the least error, or nothing
# clipped.
_WITH_INT16_SCALES: dict[Enum, RangeChoice] = {
    PowerOfTwoMethod.NonOverflow: RangeChoice(MinMax),
    PowerOfTwoMethod.MinMSE: RangeChoice(MSE),
    LayerWiseMethod.LayerWisePercentile: RangeChoice(MinMax),
}

# How the ranges of weights are chosen, where no option says it.
_WEIGHT_METHODS: dict[Enum, RangeMethod] = {
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    ExtendedCalibrationMethod.MinMSE: MSE(),
}


def choose_ranges(method: Enum, parts: RecipeParts) -> dict[str, Any]:
    """Return how ranges and scales are chosen, as fields of a recipe.

    >>> choose_ranges(PowerOfTwoMethod.NonOverflow, RecipeParts())["scales"]
    'power-of-two'
    """
    check_settings(method, parts, _METHODS)
    asked = parts.calibration
    in_powers = isinstance(method, PowerOfTwoMethod)
    if in_powers and "weight" in asked:
        raise RecipeError("WeightCalibrateMethod is for float scales; weights get the same method.")
    symmetric = bool(asked.get("symmetric", in_powers))
    weights = asked.get("weight", MinMax())
    if asked.get("int16") or isinstance(method, Int16Method):
        make = _WITH_INT16_SCALES.get(method, _METHODS[method])
        if not in_powers:
            weights = _WEIGHT_METHODS.get(method, weights)
        return {"ranges": make(asked, symmetric), "weight_ranges": weights, "scales": "int16"}
    return {
        "ranges": _METHODS[method](asked, symmetric),
        "weight_ranges": _WEIGHT_METHODS.get(method, weights),
        "scales": "power-of-two" if in_powers else "float",
    }
