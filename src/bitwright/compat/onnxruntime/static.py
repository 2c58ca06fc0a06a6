"""`quantize_static` with ONNX Runtime's signature, on Bitwright's pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.differences import (
    CONVERT_WITHOUT_PAIRS,
    FLOAT8_CACHE,
    MAY_NOT_RUN,
)
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    as_member,
    as_quant_type,
)
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.half_floats import takes_float16_scales
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.compat.onnxruntime.override_checks import check_overrides
from bitwright.compat.onnxruntime.ranges import PeerRanges, is_sketch_file
from bitwright.compat.onnxruntime.readers import read_in_strides
from bitwright.compat.onnxruntime.writing import RETIRED, write_model
from bitwright.compat.options import RecipeParts, read_switch
from bitwright.decide.opsets import has_float16, needed_opset
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.compute import ON_CPU
from bitwright.jobs.modes import mode_of
from bitwright.numerics.types import QType
from bitwright.recipe import (
    Distribution,
    Entropy,
    MinMax,
    Override,
    Percentile,
    RangeMethod,
    Recipe,
)
from bitwright.run import open_session
from bitwright.support.notices import warn_user
from bitwright.verification.rounded import describe_rounded

if TYPE_CHECKING:
    import onnx

__all__ = [
    "CALIBRATION_METHODS",
    "RangeChoice",
    "check_settings",
    "check_types",
    "quantize_static",
    "static_recipe",
]


@raises_builtins(retired=RETIRED)
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

    The defaults, the tensor names and the op types are that tool's, and so is its leniency: options
    and names without an effect are ignored, and a model with nothing to quantize is written as it
    is; so are its rules for what is quantized, and the numbers of its calibrators. Other than
    there, a warning says what is ignored, options are checked before any work is done, excluded
    nodes stay float, and every written model has been run.

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
    _drop_settings_of_other_methods(method, parts)
    types = {
        as_quant_type(activation_type, "activation type"),
        as_quant_type(weight_type, "weight type"),
    }
    if QuantType.QFLOAT8E4M3FN in types and method is not CalibrationMethod.Distribution:
        raise RecipeError(
            "Only Distribution calibration method is supported for float quantization."
        )
    cache = None if calibration_cache_path is None else Path(calibration_cache_path)
    sketches = _choose_ranges(method, parts, cache, float8=QuantType.QFLOAT8E4M3FN in types)
    recipe = static_recipe(parts, quant_format, activation_type, weight_type)
    recipe = _keep_float16(model_input, _write_four_bits(model_input, recipe))
    if calibration_data_reader is None and (cache is None or not cache.exists()):
        raise DataError(
            "Either calibration_data_reader or an existing calibration_cache_path must be "
            "provided. A reader may be any iterable of dicts."
        )
    if calibration_data_reader is None and recipe.smooth is not None:
        raise DataError("SmoothQuant requires a calibration_data_reader: a cache has ranges only.")
    # A cache of another method is refused before any work; with one that fits, no data is read.
    if isinstance(sketches, PeerRanges) and sketches.stored() is not None and not recipe.smooth:
        calibration_data_reader = None
    overrides = (extra_options or {}).get("TensorQuantOverrides")
    check_overrides(model_input, overrides, activation_type)
    calibration = Calibration(
        read_in_strides(calibration_data_reader, parts.calibration.get("stride")),
        holdout=False,
        sketches=sketches,
    )
    run = mode_of(recipe).quantize
    result = write_model(
        lambda: run(model_input, recipe, calibration, calibration_providers, ON_CPU),
        model_input,
        model_output,
        external_data=read_switch("use_external_data_format", use_external_data_format),
    )
    # Nothing is returned, so that nobody would read the plan's notes.
    if result is not None and (rounded := result.plan.rounded_by_runtime):
        warn_user(f"{describe_rounded(rounded)}.")
    # Some are refused when they are opened, some when they are run.
    runs = result is None or recipe.place.must_run or (result.outputs and _opens(result.model))
    if not runs:
        MAY_NOT_RUN.warn("the model")


def _opens(model: ir.Model) -> bool:
    """Whether the runtime opens a model as users will, with its optimizations."""
    try:
        open_session(model)
    except ModelError:
        return False
    return True


def _write_four_bits(model: str | Path | onnx.ModelProto, recipe: Recipe) -> Recipe:
    """Let contrib operators have types of 4 bits where the model's opset has no others, as there.

    Types of 16 bits and blocks raise the opset, and then it has 4 bits as well.
    """
    bits = {qtype.bits for qtype in _types_of(recipe)}
    in_blocks = recipe.block_size or any(o.block_size for o in recipe.overrides.values())
    if 4 not in bits or 16 in bits or in_blocks or recipe.emulate.contrib_ops:
        return recipe
    if not recipe.output_format.standard_pairs or graph.opset_of(graph.load_model(model)) >= 21:
        return recipe
    warn_user(
        "Q/DQ nodes are in the domain com.microsoft: standard ones take 4 bits from opset 21 on."
    )
    return recipe.replace(emulate={"contrib_ops": True})


def _types_of(recipe: Recipe) -> set[QType]:
    """Return the types that a recipe names, also for single tensors."""
    given = [*recipe.overrides.values()]
    given += [override.convert for override in given if override.convert is not None]
    named = {override.qtype for override in given if override.qtype is not None}
    return {recipe.activation, recipe.weight, *named}


def _keep_float16(model: str | Path | onnx.ModelProto, recipe: Recipe) -> Recipe:
    """Let a float16 model stay one, without Casts, where the other tool's runs.

    That takes opset 21. Float16 scales have too few digits for 16 bits.
    """
    has_digits = all(qtype.is_integer and qtype.bits <= 8 for qtype in _types_of(recipe))
    if not has_digits or not recipe.output_format.standard_pairs:
        return recipe
    loaded = graph.load_model(model)
    types = recipe.select.op_types
    kept = (
        has_float16(loaded)
        and needed_opset(loaded, recipe) >= 21
        and takes_float16_scales(loaded, None if types is None else frozenset(types))
    )
    return recipe.replace(float16="keep") if kept else recipe


def _choose_ranges(
    method: CalibrationMethod, parts: RecipeParts, cache: Path | None, *, float8: bool
) -> Any:
    """Choose the range method; return where else ranges come from than from observation."""
    asked = parts.calibration
    symmetric = bool(asked.get("symmetric", False))
    if float8:  # whose scales come from deviations, which a cache of ranges would not serve
        if cache is not None:
            FLOAT8_CACHE.warn("calibration_cache_path")
        return None
    is_plain = method is CalibrationMethod.MinMax and not asked.get("moving_average")
    if is_sketch_file(cache) or (is_plain and cache is None):
        parts.recipe["ranges"] = CALIBRATION_METHODS[method](asked, symmetric)
        return cache
    options = {_CALIBRATOR_OPTIONS.get(name, name): value for name, value in asked.items()}
    return PeerRanges(method, options, cache, bool(parts.smooth.get("asked")))


_CALIBRATOR_OPTIONS = {"constant": "averaging_constant"}


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
    """Refuse types that do not go together, or not with the format, in words that scripts match.

    >>> check_types(QuantFormat.QOperator, QuantType.QInt16, QuantType.QInt8)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: Only QuantFormat.QDQ supports 16-bit quantization types.
    """
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
    reason = CONVERT_WITHOUT_PAIRS.why
    for name in _PAIR_OPTIONS:
        if parts.emulate.get(name):
            parts.drop(f"emulate.{name}", reason)
    if parts.recipe.get("block_size"):
        parts.drop("recipe.block_size", reason)
    overrides: dict[str, Override] = parts.recipe.get("overrides", {})
    converted = [name for name, override in overrides.items() if override.convert is not None]
    for name in converted:
        CONVERT_WITHOUT_PAIRS.warn(f"'convert' in TensorQuantOverrides[{name!r}]")
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


def check_settings(method: Enum, parts: RecipeParts, methods: Mapping[Enum, RangeChoice]) -> None:
    """Refuse a setting that another method than the chosen one reads."""
    for name, owner in _idle_settings(method, parts, methods).items():
        raise RecipeError(f"{parts.options[f'calibration.{name}']} goes with {owner} only.")


def _drop_settings_of_other_methods(method: Enum, parts: RecipeParts) -> None:
    for name, owner in _idle_settings(method, parts, CALIBRATION_METHODS).items():
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
