"""`quantize_static` with ONNX Runtime's signature, on Bitwright's pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.api import quantize
from bitwright.assess.optimized.rounded import describe_rounded
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    as_member,
)
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.readers import read_in_strides
from bitwright.compat.onnxruntime.unquantized import or_write_unquantized
from bitwright.compat.options import RecipeParts, read_switch
from bitwright.errors import DataError, RecipeError
from bitwright.recipe import Distribution, Entropy, MinMax, Percentile, RangeMethod, Recipe

if TYPE_CHECKING:
    import onnx

__all__ = [
    "CALIBRATION_METHODS",
    "RangeChoice",
    "check_settings",
    "quantize_static",
    "static_recipe",
]


def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: Any = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    calibration_cache_path: str | Path | None = None,
) -> None:
    """Quantize weights and activations of a model and write it, as ONNX Runtime's tool would.

    The defaults, the tensor names and the op types are that tool's. Other than there, options
    are checked before any work is done, unknown ones are errors, excluded nodes stay float, and
    a Relu or Clip goes only where the quantizer does exactly its work. A model in which nothing is
    quantized is written as it was, with a warning.
    `calibration_cache_path` keeps what was observed and refuses another model's.

    >>> import tempfile, bitwright
    >>> from bitwright.compat.onnxruntime import quantize_static
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quantize_static(demo.model_path, f"{folder}/q.onnx", demo.calibration[:8])
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    parts = translate_options(extra_options)
    parts.choose_nodes(op_types_to_quantize, nodes_to_quantize, nodes_to_exclude)
    method = as_member(CalibrationMethod, calibrate_method, "calibration method")
    parts.recipe.update(
        per_channel=read_switch("per_channel", per_channel),
        reduce_range=read_switch("reduce_range", reduce_range),
    )
    check_settings(method, parts, CALIBRATION_METHODS)
    symmetric = bool(parts.calibration.get("symmetric", False))
    parts.recipe["ranges"] = CALIBRATION_METHODS[method](parts.calibration, symmetric)
    recipe = static_recipe(parts, quant_format, activation_type, weight_type)
    if calibration_data_reader is None and calibration_cache_path is None:
        raise DataError(
            "quantize_static needs a calibration_data_reader; give one, or any iterable of dicts."
        )
    external = read_switch("use_external_data_format", use_external_data_format) or None
    with or_write_unquantized(model_input, model_output, external):
        result = quantize(
            model_input,
            model_output,
            data=read_in_strides(calibration_data_reader, parts.calibration.get("stride")),
            recipe=recipe,
            holdout=False,
            sketches=calibration_cache_path,
            external_data=external,
            providers=calibration_providers,
        )
        # Nothing is returned, so that nobody would read the plan's notes.
        if rounded := result.plan.rounded_by_runtime:
            warnings.warn(f"{describe_rounded(rounded)}.", stacklevel=2)


def static_recipe(
    parts: RecipeParts, quant_format: Any, activation_type: Any, weight_type: Any
) -> Recipe:
    """Return the recipe of a static model as ONNX Runtime's tool makes it."""
    written = as_member(QuantFormat, quant_format, "quantization format")
    parts.recipe.update(
        name="onnxruntime",
        format="qoperator" if written is QuantFormat.QOperator else "qdq",
        activation=as_member(QuantType, activation_type, "activation type").qtype,
        weight=as_member(QuantType, weight_type, "weight type").qtype,
        # ONNX Runtime leaves clean-ups to quant_pre_process, and keeps the model's names.
        optimize=False,
        rounding="nearest",
    )
    # Its placement, too: every op of a listed type gets its pairs.
    parts.place.update(isolated=True, float_bias_add=False)
    return Recipe(**parts.build())


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


def check_settings(method: Enum, parts: RecipeParts, methods: Mapping[Enum, RangeChoice]) -> None:
    """Refuse a setting that another method than the chosen one reads."""
    for owner, calibrated in methods.items():
        for name in {*calibrated.settings} - {*methods[method].settings} - _HARMLESS:
            if parts.calibration.get(name, False) is not False:
                raise RecipeError(f"{parts.options[f'calibration.{name}']} goes with {owner} only.")
