"""The recipe of a static model as ONNX Runtime's tool makes it, and what its arguments must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    as_member,
    as_quant_type,
)
from bitwright.compat.options import RecipeParts
from bitwright.errors import RecipeError
from bitwright.recipe import (
    Distribution,
    Entropy,
    MinMax,
    Override,
    Percentile,
    RangeMethod,
    Recipe,
)
from bitwright.support.wording import warn_user


def static_recipe(
    parts: RecipeParts, quant_format: Any, activation_type: Any, weight_type: Any
) -> Recipe:
    """Return the recipe of a static model as ONNX Runtime's tool makes it."""
    written = as_member(QuantFormat, quant_format, "quantization format")
    check_types(written, activation_type, weight_type)
    if written is QuantFormat.QOperator:
        _drop_pair_options(parts)
    elif "constant_weights_only" in parts.select:
        parts.drop("select.constant_weights_only", "only QOperator and dynamic models read it")
    float8 = as_quant_type(weight_type, "weight type") is QuantType.QFLOAT8E4M3FN
    if float8:
        parts.recipe.update(ranges=Distribution(), weight_ranges=Distribution())
    # There, such models are written for other runtimes.
    parts.place["must_run"] = not (float8 or parts.recipe.get("block_size"))
    parts.recipe.update(
        name="onnxruntime",
        format="qoperator" if written is QuantFormat.QOperator else "qdq",
        activation=as_quant_type(activation_type, "activation type").qtype,
        weight=as_quant_type(weight_type, "weight type").qtype,
        # ONNX Runtime leaves clean-ups to quant_pre_process, and keeps the model's names.
        optimize=False,
        rounding="nearest",
    )
    # Its placement, too: every op of a listed type gets its pairs.
    parts.emulate["conventions"] = "onnxruntime"
    parts.place.update(isolated=True, float_bias_add=False)
    return Recipe(**parts.build())


def check_types(quant_format: QuantFormat, activation_type: Any, weight_type: Any) -> None:
    """Refuse types that do not go together, or not with the format, in words that scripts match."""
    activation = as_quant_type(activation_type, "activation type")
    weight = as_quant_type(weight_type, "weight type")
    opening = "ONNXRuntime quantization doesn't support data format:"
    float8 = QuantType.QFLOAT8E4M3FN
    if activation is QuantType.QInt8 and weight is QuantType.QUInt8:
        raise RecipeError(
            f"{opening}activation_type=QuantType.QInt8, weight_type=QuantType.QUInt8; use int8 "
            "weights, or uint8 activations."
        )
    if (activation is float8) != (weight is float8):
        raise RecipeError(
            f"{opening} activation_type=QuantType.{activation}, weight_type=QuantType.{weight}; "
            "float8 is for both or for none."
        )
    if quant_format is QuantFormat.QOperator and 16 in (activation.qtype.bits, weight.qtype.bits):
        raise RecipeError("Only QuantFormat.QDQ supports 16-bit quantization types.")


_PAIR_OPTIONS = ("dedicated_pairs", "weight_pairs", "contrib_ops", "keep_activations")


def _drop_pair_options(parts: RecipeParts) -> None:
    """Leave out what is about Q/DQ pairs, which QOperator does without."""
    reason = "QOperator has no Q/DQ pairs"
    for name in _PAIR_OPTIONS:
        if parts.emulate.get(name):
            parts.drop(f"emulate.{name}", reason)
    if parts.recipe.get("block_size"):
        parts.drop("recipe.block_size", reason)
    overrides: dict[str, Override] = parts.recipe.get("overrides", {})
    converted = [name for name, override in overrides.items() if override.convert is not None]
    for name in converted:
        warn_user(f"'convert' in TensorQuantOverrides[{name!r}] is ignored: {reason}.")
        overrides[name] = overrides[name].replace(convert=None, convert_for=None)


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
    CalibrationMethod.Entropy: RangeChoice(partial(Entropy, guarded=False), ("bins", "levels")),
    CalibrationMethod.Percentile: RangeChoice(Percentile, ("percentile",)),
    CalibrationMethod.Distribution: RangeChoice(Distribution),
}

# Other methods than Entropy read a histogram that is finer than any number of bins asked for.
_HARMLESS = {"bins", "levels"}


def drop_settings_of_other_methods(
    method: Enum, parts: RecipeParts, methods: Mapping[Enum, RangeChoice]
) -> None:
    """Forget, with a warning, a setting that another method than the chosen one reads."""
    for name, owner in _idle_settings(method, parts, methods).items():
        parts.drop(f"calibration.{name}", f"it goes with {owner} only")


def _idle_settings(
    method: Enum, parts: RecipeParts, methods: Mapping[Enum, RangeChoice]
) -> dict[str, Enum]:
    """Return the settings that are given for another method than the chosen one, and for which."""
    return {
        name: owner
        for owner, calibrated in methods.items()
        for name in {*calibrated.settings} - {*methods[method].settings} - _HARMLESS
        if parts.calibration.get(name, False) is not False
    }
