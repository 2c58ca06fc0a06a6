"""The arguments of the Vitis AI quantizer, turned into a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from bitwright.compat.onnxruntime.enums import CalibrationMethod
from bitwright.compat.vai_q_onnx.enums import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    read_format,
    read_method,
    read_type,
)
from bitwright.compat.vai_q_onnx.finetuning import read_fast_finetune
from bitwright.compat.vai_q_onnx.options import VitisParts
from bitwright.decide.ops import DEFAULT_OP_TYPES
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT8, UINT8, QType
from bitwright.recipe import (
    MSE,
    CrossLayerEqualization,
    Distribution,
    Entropy,
    FineTuning,
    LayerwisePercentile,
    Limits,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    RangeMethod,
    Recipe,
    Rewrites,
    Simulation,
)
from bitwright.targets import NPU_CNN

__all__ = ["Request", "choose_ranges", "to_recipe"]

Hardware = Literal["npu-cnn", "npu-transformer"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for besides `extra_options`."""

    quant_format: Any
    calibrate_method: Any
    activation_type: Any
    weight_type: Any
    hardware: Hardware = None
    per_channel: bool = False
    reduce_range: bool = False
    input_nodes: Sequence[str] = ()
    output_nodes: Sequence[str] = ()
    op_types: Sequence[str] = ()
    extra_op_types: Sequence[str] = ()
    nodes: Sequence[str] = ()
    exclude: Sequence[str] = ()
    exclude_between: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    optimize: bool = True
    channels_last: bool = False
    widen_interface: bool = False
    cle: bool = False
    smooth: bool = False
    fine_tune: bool = False


# On by default where the model goes to the NPU's CNN compiler.
_NPU_REWRITES = (
    "batch_norm_to_conv",
    "reduce_mean_to_pool",
    "split_large_pools",
    "split_to_slice",
    "swish_to_mul",
)
_NPU_FUSED = ("Relu", "Clip")
_TRANSFORMER_OP_TYPES = ("Gemm", "MatMul")


def to_recipe(request: Request, parts: VitisParts, name: str) -> Recipe:
    """Return the recipe of a request and its options; what contradicts itself is an error."""
    format, blocks = read_format(request.quant_format)
    activation = blocks or read_type(request.activation_type, "activation type")
    weight = blocks or read_type(request.weight_type, "weight type")
    method = read_method(request.calibrate_method)
    on_npu = request.hardware == "npu-cnn"
    if on_npu:
        _guard_npu(request, parts, method, activation, weight)
        parts.recipe["activation_symmetric"] = True
        parts.recipe.setdefault("bias", "weight")
    if format in ("qdq", "qoperator"):
        _guard_standard_types(activation, weight)
    if weight.kind != "int":
        parts.recipe.setdefault("bias", "weight")
    parts.recipe.update(
        name=name,
        format=format,
        activation=activation,
        weight=weight,
        per_channel=request.per_channel,
        reduce_range=request.reduce_range,
        optimize=request.optimize,
        simulate=_simulation(parts, on_npu),
        limits=_limits(parts, on_npu, method),
        equalize=_equalization(parts, request.cle),
        fine_tune=_fine_tuning(parts, request.fine_tune),
        rewrite=Rewrites(
            **{
                **dict.fromkeys(_NPU_REWRITES, on_npu),
                **parts.rewrite,
                "channels_last": request.channels_last,
                "widen_interface": request.widen_interface,
            }
        ),
        **choose_ranges(method, parts),
    )
    # The placement of the tools people come from: every op of a listed type gets its pairs.
    parts.place.update(isolated=True, float_bias_add=False, fuse_activations=_fused(parts, on_npu))
    _smooth(parts, request.smooth)
    _choose_nodes(request, parts)
    return Recipe(**parts.build())


def _guard_npu(
    request: Request, parts: VitisParts, method: Enum, activation: QType, weight: QType
) -> None:
    """Refuse what the NPU's CNN compiler does not take."""
    refused = {
        "per_channel must be False": request.per_channel,
        "reduce_range must be False": request.reduce_range,
        "activation_type must be QInt8 or QUInt8": activation not in (INT8, UINT8),
        "weight_type must be QInt8": weight is not INT8,
        "ActivationSymmetric must be True": not parts.recipe.get("activation_symmetric", True),
        "WeightSymmetric must be True": not parts.recipe.get("weight_symmetric", True),
        "QuantizeBias must be True": not parts.recipe.get("quantize_bias", True),
        "Int16Scale must be False": parts.scales.get("int16", False),
        "QDQOpTypePerChannelSupportToAxis must be {}": bool(parts.place.get("channel_axes")),
        "calibrate_method must be a PowerOfTwoMethod": not isinstance(method, PowerOfTwoMethod),
    }
    for sentence, is_wrong in refused.items():
        if is_wrong:
            raise RecipeError(
                f"for CNNs on the NPU {sentence}: it has 8 bits, and a power of two a tensor."
            )


def _guard_standard_types(*types: QType) -> None:
    for qtype in types:
        if qtype.min_opset == 0:
            raise RecipeError(
                f"QuantizeLinear knows no {qtype}; set quant_format=VitisQuantFormat.QDQ with it."
            )


def choose_ranges(method: Enum, parts: VitisParts) -> dict[str, Any]:
    """Return how ranges and scales are chosen."""
    asked = parts.calibration
    if asked.get("moving_average") and method is not CalibrationMethod.MinMax:
        raise RecipeError("CalibMovingAverage goes with CalibrationMethod.MinMax only.")
    if "percentile" in asked and method is not CalibrationMethod.Percentile:
        raise RecipeError("Percentile goes with CalibrationMethod.Percentile only.")
    for name, key in (("metric", "LWPMetric"), ("candidates", "PercentileCandidates")):
        if name in asked and method is not LayerWiseMethod.LayerWisePercentile:
            raise RecipeError(f"{key} goes with LayerWiseMethod.LayerWisePercentile only.")
    if "mode" in asked and method is not PowerOfTwoMethod.MinMSE:
        raise RecipeError("MinMSEMode goes with PowerOfTwoMethod.MinMSE only.")
    in_powers = isinstance(method, PowerOfTwoMethod)
    if in_powers and "weight" in asked:
        raise RecipeError("WeightCalibrateMethod is for float scales; weights get the same method.")
    symmetric = bool(asked.get("symmetric", in_powers))
    if method is ExtendedCalibrationMethod.MinMSE:
        scales = "int16" if parts.scales.get("int16") else "float"
        return {"ranges": MSE(symmetric=symmetric), "weight_ranges": MSE(), "scales": scales}
    if parts.scales.get("int16") or method is Int16Method.MinMax:
        # The same aim with a finer grid of scales: the least error, or nothing clipped.
        plain: RangeMethod = (
            MSE(symmetric=symmetric)
            if method is PowerOfTwoMethod.MinMSE
            else MinMax(symmetric=symmetric)
            if not isinstance(method, CalibrationMethod)
            else _float_method(method, asked, symmetric)
        )
        return {"ranges": plain, "weight_ranges": _weight_method(asked), "scales": "int16"}
    if isinstance(method, CalibrationMethod):
        return {
            "ranges": _float_method(method, asked, symmetric),
            "weight_ranges": _weight_method(asked),
        }
    if method is PowerOfTwoMethod.NonOverflow:
        chosen: RangeMethod = NonOverflow(symmetric=symmetric)
        return {"ranges": chosen, "weight_ranges": NonOverflow(), "scales": "power-of-two"}
    if method is PowerOfTwoMethod.MinMSE:
        chosen = MinMSE(symmetric=symmetric, mode=asked.get("mode", "all"))
        return {"ranges": chosen, "weight_ranges": MinMSE(), "scales": "power-of-two"}
    layerwise = {name: asked[name] for name in ("candidates", "metric") if name in asked}
    chosen = LayerwisePercentile(symmetric=symmetric, **layerwise)
    return {"ranges": chosen, "weight_ranges": _weight_method(asked)}


def _float_method(method: CalibrationMethod, asked: dict[str, Any], symmetric: bool) -> RangeMethod:
    if method is CalibrationMethod.MinMax:
        average = asked.get("constant", 0.01) if asked.get("moving_average") else None
        return MinMax(symmetric=symmetric, moving_average=average)
    if method is CalibrationMethod.Percentile:
        return Percentile(symmetric=symmetric, percentile=asked.get("percentile", 99.999))
    if method is CalibrationMethod.Entropy:
        # Other methods read a histogram that is finer than any number of bins asked for.
        bins = {name: asked[name] for name in ("bins", "levels") if name in asked}
        return Entropy(symmetric=symmetric, **bins)
    return Distribution(symmetric=symmetric)


def _weight_method(asked: dict[str, Any]) -> RangeMethod:
    return MSE() if asked.get("weight") == "MinMSE" else MinMax()


def _simulation(parts: VitisParts, on_npu: bool) -> Simulation | None:
    asked = parts.simulate.pop("asked", on_npu)
    if not asked:
        _say_without_effect(parts, parts.simulate, "SimulateDPU")
        return None
    return Simulation(**parts.simulate)


def _limits(parts: VitisParts, on_npu: bool, method: Enum) -> Limits | None:
    asked = parts.limits.pop("asked", None)
    if asked and (not isinstance(method, PowerOfTwoMethod) or parts.scales.get("int16")):
        raise RecipeError(
            "NPULimitationCheck is about power-of-two scales; use a PowerOfTwoMethod with it."
        )
    if not (on_npu if asked is None else asked):
        _say_without_effect(parts, parts.limits, "NPULimitationCheck")
        return None
    return Limits(**parts.limits)


def _equalization(parts: VitisParts, asked: bool) -> CrossLayerEqualization | None:
    fields = dict(parts.equalize)
    if not asked:
        _say_without_effect(parts, fields, "include_cle")
        return None
    if fields.pop("use_threshold", True) is False:
        fields["weight_threshold"] = None
    return CrossLayerEqualization(**fields)


def _fine_tuning(parts: VitisParts, asked: bool) -> FineTuning | None:
    if not asked:
        if parts.fine_tune is not None:
            parts.sentences.append(
                "the option 'FastFinetune' has no effect without include_fast_ft."
            )
            parts.fine_tune = None
        return None
    if parts.fine_tune is None:
        parts.fine_tune = read_fast_finetune(None)
    parts.sentences += parts.fine_tune.sentences
    return parts.fine_tune.method


def _smooth(parts: VitisParts, asked: bool) -> None:
    if asked:
        parts.smooth["asked"] = True
        return
    _say_without_effect(parts, parts.smooth, "include_sq")
    parts.smooth.clear()


def _say_without_effect(parts: VitisParts, fields: dict[str, Any], switch: str) -> None:
    """Tell of settings that nothing reads; a False asks for nothing and needs no word."""
    for name, value in fields.items():
        if value is not False:
            parts.sentences.append(f"the option for {name!r} has no effect without {switch}.")


def _fused(parts: VitisParts, on_npu: bool) -> tuple[str, ...]:
    fused = {**dict.fromkeys(_NPU_FUSED, on_npu), **parts.fuse}
    return tuple(op_type for op_type, is_fused in fused.items() if is_fused)


def _choose_nodes(request: Request, parts: VitisParts) -> None:
    op_types = tuple(request.op_types)
    if not op_types and request.hardware == "npu-transformer":
        op_types = _TRANSFORMER_OP_TYPES
        parts.select.setdefault("constant_weights_only", True)
    elif not op_types and (request.hardware == "npu-cnn" or _is_vendors(parts)):
        op_types = NPU_CNN.op_types or ()
    if request.extra_op_types:
        op_types = tuple(
            dict.fromkeys((*(op_types or sorted(DEFAULT_OP_TYPES)), *request.extra_op_types))
        )
    parts.choose_nodes(op_types, request.nodes, [_as_pattern(name) for name in request.exclude])
    if request.exclude_between:
        parts.select["exclude_between"] = request.exclude_between
    for field in ("input_nodes", "output_nodes"):
        if getattr(request, field):
            parts.select[field] = tuple(getattr(request, field))


def _is_vendors(parts: VitisParts) -> bool:
    return parts.recipe["format"] in ("extended", "fix-neuron")


def _as_pattern(name: str) -> str:
    """Turn a regular expression as Quark writes it into ours."""
    return f"re:{name[1:]}" if name.startswith("^") else name
