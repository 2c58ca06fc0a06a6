"""Calibration methods of ONNX Runtime's tool, as range methods of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bitwright.compat.onnxruntime.enums import CalibrationMethod
from bitwright.compat.options import RecipeParts
from bitwright.errors import RecipeError
from bitwright.recipe import Distribution, Entropy, MinMax, Percentile, RangeMethod

__all__ = ["CALIBRATION_METHODS", "RangeChoice", "check_settings", "range_method"]


@dataclass(frozen=True, slots=True)
class RangeChoice:
    """A range method, and the settings of calibration that it alone reads."""

    make: Callable[..., RangeMethod]
    settings: tuple[str, ...] = ()

    def __call__(self, asked: Mapping[str, Any], symmetric: bool) -> RangeMethod:
        """Return the range method with what was asked for."""
        given = {name: asked[name] for name in self.settings if name in asked}
        if given.pop("moving_average", False):
            given["moving_average"] = asked.get("constant", 0.01)
        return self.make(symmetric=symmetric, **given)


CALIBRATION_METHODS: dict[Enum, RangeChoice] = {
    CalibrationMethod.MinMax: RangeChoice(MinMax, ("moving_average",)),
    CalibrationMethod.Entropy: RangeChoice(Entropy, ("bins", "levels")),
    CalibrationMethod.Percentile: RangeChoice(Percentile, ("percentile",)),
    CalibrationMethod.Distribution: RangeChoice(Distribution),
}

# Other methods than Entropy read a histogram that is finer than any number of bins asked for.
_HARMLESS = {"bins", "levels"}


def range_method(method: CalibrationMethod, parts: RecipeParts) -> RangeMethod:
    """Return the range method of a calibration method and of the options about calibration."""
    check_settings(method, parts, CALIBRATION_METHODS)
    symmetric = bool(parts.calibration.get("symmetric", False))
    return CALIBRATION_METHODS[method](parts.calibration, symmetric)


def check_settings(method: Enum, parts: RecipeParts, methods: Mapping[Enum, RangeChoice]) -> None:
    """Refuse a setting that another method than the chosen one reads."""
    for owner, calibrated in methods.items():
        for name in {*calibrated.settings} - {*methods[method].settings} - _HARMLESS:
            if parts.calibration.get(name, False) is not False:
                raise RecipeError(f"{parts.options[f'calibration.{name}']} goes with {owner} only.")
