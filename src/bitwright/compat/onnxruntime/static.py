"""`quantize_static` with ONNX Runtime's signature, on Bitwright's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from bitwright import graph
from bitwright.compat.onnxruntime.calibrator import calibrated_tensors
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    as_member,
    as_quant_type,
)
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.override_checks import check_overrides
from bitwright.compat.onnxruntime.peer_pass import QuantizerRequest, run_peer
from bitwright.compat.onnxruntime.quant_utils import (
    load_model_with_shape_infer,
    update_opset_version,
)
from bitwright.compat.onnxruntime.ranges import PeerRanges, is_sketch_file
from bitwright.compat.onnxruntime.readers import read_in_strides
from bitwright.compat.onnxruntime.registries import (
    default_op_types,
    foreign_op_types,
    selected_op_types,
)
from bitwright.compat.onnxruntime.static_recipe import (
    CALIBRATION_METHODS,
    drop_settings_of_other_methods,
    static_recipe,
)
from bitwright.compat.onnxruntime.writing import RETIRED, write_model, write_of_peer
from bitwright.compat.options import RecipeParts, read_switch
from bitwright.decide.ops import op_types
from bitwright.decide.opsets import has_float16, needed_opset
from bitwright.errors import DataError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.modes import quantize_model
from bitwright.numerics.types import QType
from bitwright.recipe import Recipe
from bitwright.run.trial import opens
from bitwright.support.wording import warn_user
from bitwright.verification.runtime import describe_rounded

__all__ = ["opens", "quantize_static"]


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

    Defaults, names, rules and the numbers of calibrators are that tool's, and so is its leniency.
    Other than there, a warning says what is ignored, options are checked before any work, excluded
    nodes stay float, and every written model has been run.

    >>> import tempfile, bitwright
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quantize_static(demo.model_path, f"{folder}/q.onnx", demo.calibration[:8])
    ...     bitwright.inspect(f"{folder}/q.onnx").is_quantized
    True
    """
    written = as_member(QuantFormat, quant_format, "quantization format")
    request = StaticRequest(
        model=model_input,
        reader=calibration_data_reader,
        written=written,
        op_types_to_quantize=selected_op_types(written, op_types_to_quantize),
        per_channel=read_switch("per_channel", per_channel),
        reduce_range=read_switch("reduce_range", reduce_range),
        activation_qType=activation_type,
        weight_qType=weight_type,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        method=as_member(CalibrationMethod, calibrate_method, "calibration method"),
        providers=calibration_providers,
        extra_options=extra_options,
        cache=None if calibration_cache_path is None else Path(calibration_cache_path),
    )
    external = read_switch("use_external_data_format", use_external_data_format)
    _run(request, model_output, external_data=external)


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRequest(QuantizerRequest):
    """The arguments of `quantize_static`."""

    reader: Any
    written: QuantFormat
    method: CalibrationMethod
    providers: Sequence[str] | None
    cache: Path | None

    @property
    def is_float8(self) -> bool:
        """Whether one of the types is float8."""
        types = (self.activation_qType, "activation type"), (self.weight_qType, "weight type")
        return any(as_quant_type(*given) is QuantType.QFLOAT8E4M3FN for given in types)

    def static_parts(self) -> RecipeParts:
        """Return the fields of a recipe that the arguments ask for."""
        parts = self.recipe_parts(self.op_types_to_quantize)
        drop_settings_of_other_methods(self.method, parts, CALIBRATION_METHODS)
        if self.is_float8 and self.method is not CalibrationMethod.Distribution:
            raise RecipeError(
                "Only Distribution calibration method is supported for float quantization."
            )
        return parts

    def peer_ranges(self, parts: RecipeParts) -> PeerRanges:
        """Return what gives the ranges that the peer's calibrator finds, or its cache has."""
        options = dict(parts.calibration)
        if "constant" in options:
            options["averaging_constant"] = options.pop("constant")
        return PeerRanges(self.method, options, self.cache, bool(parts.smooth.get("asked")))

    def choose_ranges(self, parts: RecipeParts) -> Any:
        """Choose the range method; return where else ranges come from than from observation."""
        asked = parts.calibration
        if self.is_float8:  # its scales come from deviations, which a cache would not serve
            if self.cache is not None:
                warn_user(
                    "calibration_cache_path is ignored: float8 scales are deviations, which a "
                    "cache of ranges does not have."
                )
            return None
        is_plain = self.method is CalibrationMethod.MinMax and not asked.get("moving_average")
        if is_sketch_file(self.cache) or (is_plain and self.cache is None):
            symmetric = bool(asked.get("symmetric", False))
            parts.recipe["ranges"] = CALIBRATION_METHODS[self.method](asked, symmetric)
            return self.cache
        return self.peer_ranges(parts)

    def check_data(self, recipe: Recipe) -> None:
        """Refuse a request without anything that ranges could come from."""
        if self.reader is None and (self.cache is None or not self.cache.exists()):
            raise DataError(
                "Either calibration_data_reader or an existing calibration_cache_path must be "
                "provided. A reader may be any iterable of dicts."
            )
        if self.reader is None and recipe.smooth is not None:
            raise DataError(
                "SmoothQuant requires a calibration_data_reader: a cache has ranges only."
            )


def _run(request: StaticRequest, output: str | Path, *, external_data: bool) -> None:
    """Quantize by a plan of the whole model, and write it."""
    parts = request.static_parts()
    sketches = request.choose_ranges(parts)
    recipe = static_recipe(parts, request.written, request.activation_qType, request.weight_qType)
    recipe = _keep_float16(request.model, _write_four_bits(request.model, recipe))
    request.check_data(recipe)
    reader = read_in_strides(request.reader, parts.calibration.get("stride"))
    # A cache of another method is refused before any work; with one that fits, no data is read.
    if isinstance(sketches, PeerRanges) and sketches.stored() is not None and not recipe.smooth:
        reader = None
    check_overrides(request.model, request.overrides, request.activation_qType)
    foreign = foreign_op_types(request.model, request.written, request.op_types_to_quantize)
    if foreign:
        job = partial(_quantize_by_peer, request, request.peer_ranges(parts), reader)
        write_of_peer(job, foreign, output, external_data=external_data)
        return
    calibration = Calibration(reader, holdout=False, sketches=sketches)
    run = partial(quantize_model, request.model, recipe, calibration, request.providers)
    result = write_model(run, request.model, output, external_data=external_data)
    # Nothing is returned, so that nobody would read the plan's notes.
    if result is not None and (rounded := result.plan.rounded_by_runtime):
        warn_user(f"{describe_rounded(rounded)}.")
    # Some are refused when they are opened, some when they are run.
    runs = result is None or recipe.place.must_run or (result.outputs and opens(result.model))
    if not runs:
        warn_user(
            "the model is written: ONNX Runtime's CPU provider may not run it at its default "
            "optimization level; switch optimizations off, or use a provider that has these types."
        )


def _quantize_by_peer(request: StaticRequest, ranges: PeerRanges, reader: Any) -> onnx.ModelProto:
    """Quantize by the peer's own pass over the nodes, on the ranges that we find."""
    model = update_opset_version(
        load_model_with_shape_infer(request.model),
        request.weight_qType,
        request.activation_qType,
        request.overrides,
        (request.extra_options or {}).get("BlockSize", 0),
    )
    op_types = request.op_types_to_quantize or default_op_types(request.written)
    loaded = graph.load_model(model)
    graph.infer_shapes(loaded)
    tensors = calibrated_tensors(loaded, op_types)
    found = ranges.stored() or ranges.calibrate(loaded, tensors, reader, request.providers)
    asked = replace(request, model=model, tensors_range=found, op_types_to_quantize=op_types)
    return run_peer(asked, request.written)


def _write_four_bits(model: Any, recipe: Recipe) -> Recipe:
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


def _keep_float16(model: Any, recipe: Recipe) -> Recipe:
    """Let a float16 model stay one, without Casts, where that loads on every machine.

    That takes opset 21. Float16 scales have too few digits for 16 bits. Where a machine has a
    float16 kernel for an operator, the runtime makes an integer one of it and the pairs around it,
    which takes float32 scales only, and refuses the model.
    """
    has_digits = all(qtype.is_integer and qtype.bits <= 8 for qtype in _types_of(recipe))
    if not has_digits or not recipe.output_format.standard_pairs:
        return recipe
    loaded = graph.load_model(model)
    types = recipe.select.op_types
    quantized = {node.op_type for node in loaded.graph.all_nodes()}
    quantized = quantized if types is None else quantized.intersection(types)
    kept = (
        has_float16(loaded)
        and needed_opset(loaded, recipe) >= 21
        and quantized.isdisjoint(op_types(lambda op: op.float32_scales == "fused"))
    )
    return recipe.replace(float16="keep") if kept else recipe
