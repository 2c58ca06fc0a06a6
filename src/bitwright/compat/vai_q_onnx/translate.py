"""Arguments and calibration methods of the Vitis AI quantizer, translated into a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from bitwright.compat.onnxruntime.static import (
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
    read_format,
    read_method,
    read_type,
)
from bitwright.compat.vai_q_onnx.finetuning import FastFinetune, read_fast_finetune
from bitwright.decide.ops import DEFAULT_OP_TYPES
from bitwright.errors import RecipeError
from bitwright.numerics.types import BFLOAT16, INT8, UINT8, QType
from bitwright.recipe import (
    MSE,
    CrossLayerEqualization,
    FineTuning,
    LayerwisePercentile,
    Limits,
    MinMax,
    MinMSE,
    NonOverflow,
    RangeMethod,
    Recipe,
    Rewrites,
    Simulation,
)
from bitwright.recipe.formats import FORMATS
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
    "conv_attributes",
)
_NPU_FUSED = ("Relu", "Clip")
_TRANSFORMER_OP_TYPES = ("Gemm", "MatMul")

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


def to_recipe(request: Request, parts: RecipeParts, name: str) -> Recipe:
    """Return the recipe of a request and its options; what contradicts itself is an error."""
    format, blocks = read_format(request.quant_format)
    activation = blocks or read_type(request.activation_type, "activation type")
    weight = blocks or read_type(request.weight_type, "weight type")
    method = read_method(request.calibrate_method)
    on_npu = request.hardware == "npu-cnn"
    if on_npu:
        _check_npu(request, parts, method, activation, weight)
        parts.recipe["activation_symmetric"] = True
    if not FORMATS[format].vendor_ops:
        _check_standard_types(activation, weight)
    if len(parts.bias) > 1:
        raise RecipeError("Int16Bias and Int32Bias contradict each other; choose one.")
    # As asked for, else the weight's type on the NPU, of float weights, and where a bias has a
    # pair, as weights do: QuantizeLinear makes no int32.
    has_pair = parts.place.get("weight_pairs") and isinstance(method, PowerOfTwoMethod)
    like_weight = on_npu or weight.kind != "int" or has_pair
    bias = next(iter(parts.bias), "weight" if like_weight else None)
    if bias is not None:
        parts.recipe["bias"] = bias
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
    if parts.place.get("bfloat16_casts") and BFLOAT16 not in (activation, weight):
        parts.drop("place.bfloat16_casts", "neither activations nor weights are bfloat16")
    if "block_rounding" in parts.place and not (
        activation.shares_exponent or weight.shares_exponent
    ):
        parts.drop("place.block_rounding", "neither activations nor weights have blocks")
    fuses = {**dict.fromkeys(_NPU_FUSED, on_npu), **parts.fuse}
    fused = tuple(op_type for op_type, is_fused in fuses.items() if is_fused)
    # The placement of the tools people come from: every op of a listed type gets its pairs.
    parts.place.update(isolated=True, float_bias_add=False, fuse_activations=fused)
    if parts.fuse_pairs:
        named = (pair for pairs in parts.fuse_pairs.values() for pair in pairs)
        parts.place["fuse_pairs"] = tuple(dict.fromkeys(named))
    if _settings(parts, "smooth", asked=request.smooth, switch="include_sq") is not None:
        parts.smooth["asked"] = True
    _choose_nodes(request, parts)
    return Recipe(**parts.build())


def _check_npu(
    request: Request, parts: RecipeParts, method: Enum, activation: QType, weight: QType
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
        "Int16Scale must be False": parts.calibration.get("int16", False),
        "QDQOpTypePerChannelSupportToAxis must be {}": bool(parts.place.get("channel_axes")),
        "calibrate_method must be a PowerOfTwoMethod": not isinstance(method, PowerOfTwoMethod),
    }
    for sentence, is_wrong in refused.items():
        if is_wrong:
            raise RecipeError(
                f"for CNNs on the NPU {sentence}: it has 8 bits, and a power of two a tensor."
            )


def _check_standard_types(*types: QType) -> None:
    for qtype in types:
        if qtype.min_opset == 0:
            raise RecipeError(
                f"QuantizeLinear knows no {qtype}; set quant_format=VitisQuantFormat.QDQ with it."
            )


def _settings(
    parts: RecipeParts, section: str, *, asked: bool, switch: str
) -> dict[str, Any] | None:
    """Return the settings of a step, or None where it is not asked for.

    The caller is then told of settings that nothing reads; a False asks for nothing.
    """
    fields: dict[str, Any] = getattr(parts, section)
    if asked:
        return fields
    parts.notes += [
        f"the option {parts.options[f'{section}.{name}']!r} has no effect without {switch}."
        for name, value in fields.items()
        if value is not False
    ]
    fields.clear()
    return None


def _simulation(parts: RecipeParts, on_npu: bool) -> Simulation | None:
    asked = parts.simulate.pop("asked", on_npu)
    fields = _settings(parts, "simulate", asked=asked, switch="SimulateDPU")
    return None if fields is None else Simulation(**fields)


def _limits(parts: RecipeParts, on_npu: bool, method: Enum) -> Limits | None:
    asked = parts.limits.pop("asked", None)
    if asked and (not isinstance(method, PowerOfTwoMethod) or parts.calibration.get("int16")):
        raise RecipeError(
            "NPULimitationCheck is about power-of-two scales; use a PowerOfTwoMethod with it."
        )
    asked = on_npu if asked is None else asked
    fields = _settings(parts, "limits", asked=asked, switch="NPULimitationCheck")
    return None if fields is None else Limits(**fields)


def _equalization(parts: RecipeParts, asked: bool) -> CrossLayerEqualization | None:
    fields = _settings(parts, "equalize", asked=asked, switch="include_cle")
    if fields is None:
        return None
    if fields.pop("use_threshold", True) is False:
        fields["weight_threshold"] = None
    return CrossLayerEqualization(**fields)


def _fine_tuning(parts: RecipeParts, asked: bool) -> FineTuning | None:
    fields = _settings(parts, "fine_tune", asked=asked, switch="include_fast_ft")
    if fields is None:
        return None
    fine_tune: FastFinetune = fields.setdefault("asked", read_fast_finetune(None))
    parts.notes += fine_tune.notes
    return fine_tune.method


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


def _choose_nodes(request: Request, parts: RecipeParts) -> None:
    op_types = tuple(request.op_types)
    if not op_types and request.hardware == "npu-transformer":
        op_types = _TRANSFORMER_OP_TYPES
        parts.select.setdefault("constant_weights_only", True)
    elif not op_types and (
        request.hardware == "npu-cnn" or FORMATS[parts.recipe["format"]].vendor_ops
    ):
        op_types = NPU_CNN.op_types or ()
    if request.extra_op_types:
        op_types = tuple(
            dict.fromkeys((*(op_types or sorted(DEFAULT_OP_TYPES)), *request.extra_op_types))
        )
    # A regular expression as Quark writes it has no "re:".
    exclude = [f"re:{name[1:]}" if name.startswith("^") else name for name in request.exclude]
    parts.choose_nodes(op_types, request.nodes, exclude)
    parts.select["unknown_names"] = "warn"  # ignored in silence there
    if request.exclude_between:
        parts.select["exclude_between"] = request.exclude_between
    for field in ("input_nodes", "output_nodes"):
        if getattr(request, field):
            parts.select[field] = tuple(getattr(request, field))
