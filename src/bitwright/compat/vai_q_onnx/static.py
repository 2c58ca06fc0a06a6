"""`quantize_static` with the Vitis AI quantizer's signature, on Bitwright's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir

from bitwright import graph
from bitwright.api import quantize
from bitwright.compat.onnxruntime.enums import QuantFormat, QuantType
from bitwright.compat.onnxruntime.errors import InvalidDataError, raises_builtins
from bitwright.compat.onnxruntime.storage import store_parameters
from bitwright.compat.onnxruntime.writing import float_model
from bitwright.compat.options import read_names, read_switch
from bitwright.compat.vai_q_onnx.blocks import read_block_type
from bitwright.compat.vai_q_onnx.enums import PowerOfTwoMethod
from bitwright.compat.vai_q_onnx.options import read_options, weight_recipe
from bitwright.compat.vai_q_onnx.translate import Hardware, Request, to_recipe
from bitwright.data import RandomData
from bitwright.errors import DataError, NothingQuantizedError, RecipeError, did_you_mean
from bitwright.recipe import GPTQ, Recipe, Selection
from bitwright.support.notices import warn_user

if TYPE_CHECKING:
    import onnx

__all__ = ["quantize_static", "read_subgraphs"]

# Old argument -> the name of today. Both work.
_OLD_ARGUMENTS = {
    "enable_dpu": "enable_npu_cnn",
    "enable_ipu_cnn": "enable_npu_cnn",
    "enable_ipu_transformer": "enable_npu_transformer",
    "inclue_cle": "include_cle",
}

# Arguments of the newest package that nothing here answers to, and why.
_REFUSED_ARGUMENTS = {
    "include_rotation": "there is no rotation of weights yet",
    "include_auto_mp": ("bitwright.find_sensitivity says which nodes to keep in 16 bits or float"),
    "specific_tensor_precision": "give the type of single tensors in TensorQuantOverrides",
    "crypto_mode": "give a ModelProto and no model_output to write nothing",
}

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
    _refuse_arguments(others)
    parts = read_options(extra_options)
    given = {
        "enable_dpu": enable_dpu,
        "enable_ipu_cnn": enable_ipu_cnn,
        "enable_ipu_transformer": enable_ipu_transformer,
        "inclue_cle": inclue_cle,
    }
    if vendor_names != "vitis-ai":
        parts.place["vendor_names"] = vendor_names
    old = {name: read_switch(name, value) for name, value in given.items()}
    parts.notes[:0] = [
        f"{name} is called {_OLD_ARGUMENTS[name]} today." for name in old if old[name]
    ]
    if read_switch("debug_mode", debug_mode):
        parts.notes.append(
            "debug_mode has no effect: bitwright.quantize returns the plan with every decision."
        )
    request = Request(
        quant_format=quant_format,
        calibrate_method=calibrate_method,
        activation_type=read_block_type(activation_type, extra_options),
        weight_type=read_block_type(weight_type, extra_options),
        hardware=_hardware(
            read_switch("enable_npu_cnn", enable_npu_cnn)
            or old["enable_ipu_cnn"]
            or old["enable_dpu"],
            read_switch("enable_npu_transformer", enable_npu_transformer)
            or old["enable_ipu_transformer"],
        ),
        per_channel=read_switch("per_channel", per_channel),
        reduce_range=read_switch("reduce_range", reduce_range),
        input_nodes=read_names("input_nodes", input_nodes),
        output_nodes=read_names("output_nodes", output_nodes),
        op_types=_op_types(
            read_names("op_types_to_quantize", op_types_to_quantize), parts.select, model_input
        ),
        extra_op_types=read_names("extra_op_types_to_quantize", extra_op_types_to_quantize),
        nodes=read_names("nodes_to_quantize", nodes_to_quantize),
        exclude=read_names("nodes_to_exclude", nodes_to_exclude),
        exclude_between=read_subgraphs(subgraphs_to_exclude or ()),
        optimize=read_switch("optimize_model", optimize_model),
        channels_last=read_switch("convert_nchw_to_nhwc", convert_nchw_to_nhwc),
        widen_interface=read_switch("convert_fp16_to_fp32", convert_fp16_to_fp32),
        cle=read_switch("include_cle", include_cle) or old["inclue_cle"],
        smooth=read_switch("include_sq", include_sq),
        fine_tune=read_switch("include_fast_ft", include_fast_ft),
    )
    select = Selection(
        op_types=tuple(request.op_types) or ("MatMul",),
        nodes=tuple(request.nodes) or None,
        exclude=tuple(request.exclude),
        exclude_between=request.exclude_between,
    )
    recipe = weight_recipe(extra_options or {}, select, "vai_q_onnx")
    recipe = recipe or to_recipe(request, parts, name="vai_q_onnx")
    sketches = parts.data.get("sketches")
    data = _data(
        calibration_data_reader,
        calibration_data_path,
        random_data_reader_input_shape,
        parts.data,
        model_input,
        is_needed=_needs_data(recipe) and (sketches is None or not Path(sketches).exists()),
    )
    _warn_once(parts.notes)
    outside = read_switch("use_external_data_format", use_external_data_format) or None
    if model_output is not None:
        graph.check_destination(model_output, source=model_input)
    try:
        result = quantize(
            model_input,
            data=data,
            recipe=recipe,
            limit=parts.data.get("limit"),
            holdout=False,
            sketches=sketches,
            providers=execution_providers,
            device=parts.fine_tune["asked"].device if parts.fine_tune else "cpu",
        )
    except NothingQuantizedError as error:
        model = float_model(model_input, error)
        if model_output is None:
            return ir.to_proto(model)
        graph.save_model(model, model_output, external_data=outside)
        return None
    if recipe.mode == "static" and recipe.output_format.standard_pairs:
        store_parameters(result.model, result.plan)
    if model_output is not None:
        result.save(model_output, external_data=outside)
    if print_summary:
        print(result.summary())
    return result.to_proto() if model_output is None else None


def _refuse_arguments(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name not in _REFUSED_ARGUMENTS:
            known = [*quantize_static.__annotations__, *_REFUSED_ARGUMENTS]
            raise RecipeError(f"unknown argument {name!r}.{did_you_mean(name, known)}")
        if value:
            raise RecipeError(f"{name} is not supported: {_REFUSED_ARGUMENTS[name]}.")


def _needs_data(recipe: Recipe) -> bool:
    if recipe.mode == "weight-only":
        return isinstance(recipe.weights.rounding, GPTQ)
    return recipe.activation.needs_range


def _hardware(cnn: bool, transformer: bool) -> Hardware:
    if cnn and transformer:
        raise RecipeError("enable_npu_cnn and enable_npu_transformer are two targets; choose one.")
    return "npu-cnn" if cnn else "npu-transformer" if transformer else None


def read_subgraphs(given: Any) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return the first and last nodes of each part that stays float."""
    try:
        return tuple((_names(first), _names(last)) for first, last in given)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            "subgraphs_to_exclude is a list of ([first nodes], [last nodes]), "
            f"by name, not {given!r}."
        ) from error


def _names(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise TypeError(given)
    return tuple(given)


def _op_types(
    named: Sequence[str], select: dict[str, Any], model: str | Path | onnx.ModelProto
) -> Sequence[str]:
    """Return the op types to quantize; QuantizeAllOpTypes stands for every one of the model."""
    if not select.pop("all_op_types", False):
        return named
    if named:
        raise RecipeError("QuantizeAllOpTypes contradicts op_types_to_quantize; choose one.")
    return sorted(
        {node.op_type for node in _graph_only(model).graph.node} - {"Constant", "Cast", "Shape"}
    )


def _data(
    reader: Any,
    path: str | Path | None,
    shape: Any,
    asked: Mapping[str, Any],
    model: str | Path | onnx.ModelProto,
    *,
    is_needed: bool,
) -> Any:
    """Return the calibration data: a reader, files, or random numbers where there is neither."""
    if reader is not None and path is not None:
        raise DataError("calibration_data_reader and calibration_data_path: give one of them.")
    given = path if reader is None else reader
    if asked.get("random") and given is not None:
        raise DataError("UseRandomData contradicts the calibration data that was given.")
    if given is not None:
        return given
    if not is_needed and not asked.get("random"):
        return None
    shape = () if shape is None else shape
    for option, given in (("Shape", asked.get("shapes")), ("DataRange", asked.get("ranges"))):
        _check_inputs(model, f"RandomDataReaderInput{option}", given)
    if len(shape) and asked.get("shapes"):
        raise DataError(
            "random_data_reader_input_shape and RandomDataReaderInputShape are the same; "
            "give one of them."
        )
    warn_user(
        "no calibration data was given: ranges come from random numbers, so the model shows that "
        "it runs and not how accurate it could be."
    )
    return RandomData(
        shapes=_shapes(shape if len(shape) else asked.get("shapes") or ()),
        ranges=asked.get("ranges"),
    )


def _check_inputs(model: str | Path | onnx.ModelProto, option: str, given: Any) -> None:
    """Refuse settings of random data that do not name every input, or name what is none."""
    if not given:
        return
    if not isinstance(given, Mapping):
        raise InvalidDataError(f"{option} is a dict of input names, not {given!r}.")
    graph = _graph_only(model).graph
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


def _graph_only(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    if isinstance(model, onnx.ModelProto):
        return model
    return onnx.load(str(model), load_external_data=False)


def _shapes(shape: Any) -> Any:
    """Return shapes as random data takes them: by name, or one for each input."""
    if not len(shape):
        return None
    if isinstance(shape, Mapping):
        return dict(shape)
    one_input = all(isinstance(size, int) for size in shape)
    return [tuple(shape)] if one_input else [tuple(sizes) for sizes in shape]


def _warn_once(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        if sentence not in _warned:
            _warned.add(sentence)
            kind = DeprecationWarning if sentence.endswith("today.") else UserWarning
            warn_user(sentence, kind)
