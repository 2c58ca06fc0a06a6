"""`quantize_static` with the Vitis AI quantizer's signature, on Bitwright's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.errors import InvalidDataError, raises_builtins
from bitwright.compat.onnxruntime.override_checks import graph_only
from bitwright.compat.onnxruntime.ranges import PeerRanges
from bitwright.compat.onnxruntime.writing import float_model, store_parameters
from bitwright.compat.options import RecipeParts, read_switch
from bitwright.compat.vai_q_onnx.enums import PowerOfTwoMethod, read_method
from bitwright.compat.vai_q_onnx.options import (
    ARGUMENTS,
    OLD_ARGUMENTS,
    REFUSED_ARGUMENTS,
    read_request,
)
from bitwright.compat.vai_q_onnx.translate import to_recipe
from bitwright.compat.vai_q_onnx.values import random_shapes
from bitwright.compat.vai_q_onnx.weight_only import weight_recipe
from bitwright.data import RandomData
from bitwright.errors import DataError, NothingQuantizedError, RecipeError, did_you_mean
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.modes import quantize_model
from bitwright.jobs.opening import Compute
from bitwright.recipe import GPTQ, MinMax, Recipe
from bitwright.support.wording import warn_user
from bitwright.targets.npu_operations import why_not_fixed

_warned: set[str] = set()


@raises_builtins()
def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    calibration_data_reader: Any = None,
    quant_format: Any = QuantFormat.QDQ,
    calibrate_method: Any = PowerOfTwoMethod.MinMSE,
    input_nodes: Sequence[str] | None = (),
    output_nodes: Sequence[str] | None = (),
    op_types_to_quantize: Sequence[str] | None = (),
    random_data_reader_input_shape: Any = (),
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: Any = QuantType.QInt8,
    weight_type: Any = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    optimize_model: bool = True,
    use_external_data_format: bool = False,
    execution_providers: Sequence[str] | None = ("CPUExecutionProvider",),
    enable_dpu: bool = False,
    convert_fp16_to_fp32: bool = False,
    convert_nchw_to_nhwc: bool = False,
    inclue_cle: bool = False,
    extra_options: Mapping[str, Any] | None = None,
    *,
    include_cle: bool = False,
    include_sq: bool = False,
    include_fast_ft: bool = False,
    enable_npu_cnn: bool = False,
    enable_npu_transformer: bool = False,
    enable_ipu_cnn: bool = False,
    enable_ipu_transformer: bool = False,
    calibration_data_path: str | Path | None = None,
    extra_op_types_to_quantize: Sequence[str] | None = (),
    subgraphs_to_exclude: Sequence[Sequence[Sequence[str]]] | None = (),
    print_summary: bool = False,
    vendor_names: Literal["vitis-ai", "quark"] = "vitis-ai",
    debug_mode: bool = False,
    specific_tensor_precision: bool = False,
    **others: Any,
) -> onnx.ModelProto | None:
    """Quantize a model as `vai_q_onnx` and Quark would, and write it.

    The arguments and their defaults are those of the Vitis AI quantizer's documentation; old
    names work and say once what they are called today. Without `model_output` the model is
    returned instead. Without a data reader the ranges come from random numbers, which is for
    trying things out: a warning says so. `input_nodes` and `output_nodes`, names of nodes or of
    tensors, bound what is quantized by what lies behind and before them in the graph.
    `subgraphs_to_exclude` has the (first nodes, last nodes) of parts that stay float.
    `vendor_names="quark"` gives extended operators the domain and names of today's Quark.

    >>> import bitwright
    >>> from bitwright.compat import vai_q_onnx
    >>> demo = bitwright.load_demo()
    >>> model = vai_q_onnx.quantize_static(
    ...     demo.model_path,
    ...     calibration_data_reader=demo.calibration[:8],
    ...     activation_type=vai_q_onnx.QuantType.QUInt8,
    ...     enable_npu_cnn=True,
    ... )
    >>> bitwright.inspect(model).is_quantized
    True
    """
    return _quantize(dict(locals()))


def _quantize(given: dict[str, Any]) -> onnx.ModelProto | None:
    """Quantize a model as the arguments of `quantize_static` say."""
    model, output, options = given["model_input"], given["model_output"], given["extra_options"]
    _refuse_arguments(given["others"])
    asked = {name: value for name, value in given.items() if name in {*ARGUMENTS, *OLD_ARGUMENTS}}
    parts = read_request(asked, options)
    if read_switch("debug_mode", given["debug_mode"]):
        parts.notes.append(
            "debug_mode has no effect: bitwright.quantize returns the plan with every decision."
        )
    if parts.asked.get("all_op_types"):
        types = {node.op_type for node in graph_only(model).graph.node}
        parts.select["op_types"] = tuple(sorted(types - {"Constant", "Cast", "Shape"}))
    if "opset" in parts.data:
        model = graph.convert_opset(graph.load_model(model), parts.data["opset"])
    recipe = weight_recipe(options or {}, parts.select, "vai_q_onnx")
    recipe, sketches = recipe or to_recipe(parts, "vai_q_onnx"), parts.data.get("sketches")
    if given["vendor_names"] == "quark" and recipe.mode == "static":
        recipe = _with_quark_rules(recipe, parts)
        sketches = sketches or _calibrator(recipe, parts)
        if isinstance(sketches, PeerRanges):
            recipe = recipe.replace(ranges=MinMax())
    data = _data(given, parts.data, recipe)
    _warn_once(parts.notes)
    if parts.asked.get("npu_cnn") or parts.asked.get("npu_transformer"):
        _warn_of_open_shapes(model)
    outside = read_switch("use_external_data_format", given["use_external_data_format"]) or None
    if output is not None:
        graph.check_destination(output, source=model)
    try:
        result = quantize_model(
            model,
            recipe,
            Calibration(data, parts.data.get("limit"), holdout=False, sketches=sketches),
            given["execution_providers"],
            Compute(parts.fine_tune["asked"].device if parts.fine_tune else "cpu"),
        )
    except NothingQuantizedError as error:
        unchanged = float_model(model, error)
        if output is None:
            return ir.to_proto(unchanged)
        graph.save_model(unchanged, output, external_data=outside)
        return None
    if recipe.mode == "static" and recipe.output_format.standard_pairs:
        store_parameters(result.model, result.plan)
    if output is not None:
        result.save(output, external_data=outside)
    if given["print_summary"]:
        print(result)
    return result.to_proto() if output is None else None


def _with_quark_rules(recipe: Recipe, parts: RecipeParts) -> Recipe:
    """Return the recipe with the rules of today's Quark, which derives from the runtime's tool."""
    rules: dict[str, Any] = {}
    if recipe.format == "extended" and not parts.emulate.get("extended_ops"):
        rules |= {"extended_ops": False, "contrib_ops": True}  # but for what the runtime has not
    if recipe.format != "qoperator" and "constant_operands" not in parts.emulate:
        rules["constant_operands"] = "weight"
    # Wider integers are of the extended format there, whose pairs need no newer opset.
    if recipe.format != "extended" and max(recipe.activation.bits, recipe.weight.bits) <= 8:
        rules["conventions"] = "onnxruntime"
    return recipe.replace(emulate=rules)


def _calibrator(recipe: Recipe, parts: RecipeParts) -> PeerRanges | None:
    """Return the runtime's calibrator where it finds more than extremes, as it does there."""
    method, asked = read_method(parts.asked["method"]), parts.calibration
    averages = method is CalibrationMethod.MinMax and asked.get("moving_average")
    known = averages or method in (CalibrationMethod.Percentile, CalibrationMethod.Entropy)
    if not known or not recipe.activation.needs_range:
        return None
    names = {"constant": "averaging_constant", "bins": "num_bins", "levels": "num_quantized_bins"}
    options = {names.get(key, key): value for key, value in asked.items()}
    return PeerRanges(CalibrationMethod(method), options, one_by_one=not averages)


def _warn_of_open_shapes(model: str | Path | onnx.ModelProto) -> None:
    """Warn of inputs that the NPU's compiler does not take, which there nothing says."""
    for value in graph.load_model(model).graph.inputs:
        reason = None if value.is_initializer() else why_not_fixed(value)
        if reason is not None:
            warn_user(
                f"the input {value.name!r} {reason}, and the NPU takes fixed shapes and a batch of "
                "1; fix them with onnxruntime.tools.make_dynamic_shape_fixed, or quantize with "
                "`bitwright quantize --fix-shape NAME=SIZE`."
            )


def _refuse_arguments(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in REFUSED_ARGUMENTS:
            known = [*quantize_static.__annotations__, *REFUSED_ARGUMENTS]
            raise RecipeError(f"unknown argument {name!r}.{did_you_mean(name, known)}")
        if value:
            raise RecipeError(f"{name} is not supported: {REFUSED_ARGUMENTS[name]}.")


def _needs_data(recipe: Recipe) -> bool:
    if recipe.mode == "weight-only":
        return isinstance(recipe.weights.rounding, GPTQ)
    return recipe.activation.needs_range


def _data(given: Mapping[str, Any], asked: Mapping[str, Any], recipe: Recipe) -> Any:
    """Return the calibration data: a reader, files, or random numbers where there is neither."""
    reader, path = given["calibration_data_reader"], given["calibration_data_path"]
    if reader is not None and path is not None:
        raise DataError("calibration_data_reader and calibration_data_path: give one of them.")
    source = path if reader is None else reader
    if asked.get("random") and source is not None:
        raise DataError("UseRandomData contradicts the calibration data that was given.")
    if source is not None:
        return source
    is_observed = "sketches" in asked and Path(asked["sketches"]).exists()
    if not asked.get("random") and (is_observed or not _needs_data(recipe)):
        return None
    for option, settings in (("Shape", asked.get("shapes")), ("DataRange", asked.get("ranges"))):
        _check_inputs(given["model_input"], f"RandomDataReaderInput{option}", settings)
    shape = given["random_data_reader_input_shape"]
    shape = () if shape is None else shape
    if len(shape) and asked.get("shapes"):
        raise DataError(
            "random_data_reader_input_shape and RandomDataReaderInputShape are the same; "
            "give one of them."
        )
    warn_user(
        "no calibration data was given: ranges come from random numbers, so the model shows that "
        "it runs and not how accurate it could be."
    )
    shapes = random_shapes(shape if len(shape) else asked.get("shapes") or ())
    return RandomData(shapes=shapes, ranges=asked.get("ranges"))


def _check_inputs(model: str | Path | onnx.ModelProto, option: str, given: Any) -> None:
    """Refuse settings of random data that do not name every input, or name what is none."""
    if not given:
        return
    if not isinstance(given, Mapping):
        raise InvalidDataError(f"{option} is a dict of input names, not {given!r}.")
    graph = graph_only(model).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    for name in given:
        if name not in inputs:
            raise InvalidDataError(
                f"{option} names {name!r}, which is no input of the model."
                f"{did_you_mean(str(name), inputs)}"
            )
    missing = [name for name in inputs if name not in given]
    if missing:
        raise InvalidDataError(f"{option} says nothing about the input {missing[0]!r}; add it.")


def _warn_once(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        if sentence not in _warned:
            _warned.add(sentence)
            kind = DeprecationWarning if sentence.endswith("today.") else UserWarning
            warn_user(sentence, kind)
