"""Arguments and calibration methods of the Vitis AI quantizer, translated into a recipe."""

from __future__ import annotations

from enum import Enum
from typing import Any

from bitwright.compat.onnxruntime.static_recipe import (
    CALIBRATION_METHODS,
    RangeChoice,
    drop_settings_of_other_methods,
)
from bitwright.compat.options import RecipeParts
from bitwright.compat.vai_q_onnx.blocks import read_block_type
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
from bitwright.compat.vai_q_onnx.options import NPU_REWRITES
from bitwright.decide.ops import DEFAULT_OP_TYPES
from bitwright.errors import RecipeError
from bitwright.numerics.types import BFLOAT16, INT8, UINT8, QType
from bitwright.recipe import (
    MSE,
    CrossLayerEqualization,
    EqualizationDetails,
    FineTuning,
    LayerwisePercentile,
    LimitDetails,
    Limits,
    MinMax,
    MinMSE,
    NonOverflow,
    RangeMethod,
    Recipe,
    Rewrites,
    Simulation,
    SimulationSwitches,
)
from bitwright.recipe.formats import FORMATS
from bitwright.targets import NPU_CNN

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

# The same aim with scales M/2^N or float ones, which are finer than powers of two: the least error,
# or nothing clipped.
_WITH_FINER_SCALES: dict[Enum, RangeChoice] = {
    PowerOfTwoMethod.NonOverflow: RangeChoice(MinMax),
    PowerOfTwoMethod.MinMSE: RangeChoice(MSE),
    LayerWiseMethod.LayerWisePercentile: RangeChoice(MinMax),
}

_OF_SIMULATION = frozenset(SimulationSwitches.__struct_fields__)
_OF_EQUALIZATION = frozenset(EqualizationDetails.__struct_fields__)

# How the ranges of weights are chosen, where no option says it.
_WEIGHT_METHODS: dict[Enum, RangeMethod] = {
    PowerOfTwoMethod.NonOverflow: NonOverflow(),
    PowerOfTwoMethod.MinMSE: MinMSE(),
    ExtendedCalibrationMethod.MinMSE: MSE(),
}


def to_recipe(parts: RecipeParts, name: str) -> Recipe:
    """Return the recipe of arguments and options; what contradicts itself is an error."""
    activation, weight = _read_types(parts)
    method = read_method(parts.asked["method"])
    on_npu = parts.asked.get("npu_cnn", False)
    if on_npu:
        _check_npu(parts, method, activation, weight)
        parts.recipe["activation_symmetric"] = True
    for qtype in (activation, weight):
        if qtype.min_opset == 0 and not FORMATS[parts.recipe["format"]].vendor_ops:
            raise RecipeError(
                f"QuantizeLinear knows no {qtype}; set quant_format=VitisQuantFormat.QDQ with it."
            )
    _choose_bias(parts, method, weight)
    parts.recipe.update(
        name=name,
        activation=activation,
        weight=weight,
        simulate=_simulation(parts, on_npu),
        limits=_limits(parts, on_npu, method),
        equalize=_equalization(parts),
        fine_tune=_fine_tuning(parts),
        rewrite=Rewrites(**{**dict.fromkeys(NPU_REWRITES, on_npu), **parts.rewrite}),
        **choose_ranges(method, parts),
    )
    _choose_pairs(parts, activation, weight)
    if _settings(parts, "smooth", switch="include_sq") is not None:
        parts.smooth["asked"] = True
    _choose_nodes(parts)
    return Recipe(**parts.build())


def _read_types(parts: RecipeParts) -> tuple[QType, QType]:
    """Return the types of activations and weights: those of the format, if it stands for some."""
    parts.recipe["format"], blocks = read_format(parts.asked["format"])
    if blocks is not None:
        return blocks, blocks
    given = (read_block_type(parts.asked[name], parts.asked) for name in ("activation", "weight"))
    activation, weight = given
    return read_type(activation, "activation type"), read_type(weight, "weight type")


def _choose_bias(parts: RecipeParts, method: Enum, weight: QType) -> None:
    """Choose the type of biases: as asked for, else like the weight or an int32.

    It is the weight's on the NPU, of float weights, and where a bias has a pair, as weights do:
    QuantizeLinear makes no int32.
    """
    if len(parts.bias) > 1:
        raise RecipeError("Int16Bias and Int32Bias contradict each other; choose one.")
    has_pair = parts.emulate.get("weight_pairs") and isinstance(method, PowerOfTwoMethod)
    like_weight = parts.asked.get("npu_cnn") or weight.kind != "int" or has_pair
    bias = next(iter(parts.bias), "weight" if like_weight else None)
    if bias is not None:
        parts.recipe["bias"] = bias


def _choose_pairs(parts: RecipeParts, activation: QType, weight: QType) -> None:
    """Place pairs as these tools do: every operator of a listed type gets its own."""
    if parts.emulate.get("bfloat16_casts") and BFLOAT16 not in (activation, weight):
        parts.drop("emulate.bfloat16_casts", "neither activations nor weights are bfloat16")
    if "block_rounding" in parts.emulate and not (
        activation.shares_exponent or weight.shares_exponent
    ):
        parts.drop("emulate.block_rounding", "neither activations nor weights have blocks")
    fuses = {**dict.fromkeys(_NPU_FUSED, parts.asked.get("npu_cnn", False)), **parts.fuse}
    fused = tuple(op_type for op_type, is_fused in fuses.items() if is_fused)
    parts.place.update(isolated=True, float_bias_add=False, fuse_activations=fused)
    if parts.fuse_pairs:
        named = (pair for pairs in parts.fuse_pairs.values() for pair in pairs)
        parts.emulate["fuse_pairs"] = tuple(dict.fromkeys(named))


def _check_npu(parts: RecipeParts, method: Enum, activation: QType, weight: QType) -> None:
    """Refuse what the NPU's CNN compiler does not take."""
    refused = {
        "per_channel must be False": parts.recipe.get("per_channel", False),
        "reduce_range must be False": parts.recipe.get("reduce_range", False),
        "activation_type must be QInt8 or QUInt8": activation not in (INT8, UINT8),
        "weight_type must be QInt8": weight is not INT8,
        "ActivationSymmetric must be True": not parts.recipe.get("activation_symmetric", True),
        "WeightSymmetric must be True": not parts.recipe.get("weight_symmetric", True),
        "QuantizeBias must be True": not parts.recipe.get("quantize_bias", True),
        "Int16Scale must be False": parts.calibration.get("int16", False),
        "UsePowerOf2Scale must be True": not parts.calibration.get("powers", True),
        "QDQOpTypePerChannelSupportToAxis must be {}": bool(parts.emulate.get("channel_axes")),
        "calibrate_method must be a PowerOfTwoMethod": not isinstance(method, PowerOfTwoMethod),
    }
    for sentence, is_wrong in refused.items():
        if is_wrong:
            raise RecipeError(
                f"for CNNs on the NPU {sentence}: it has 8 bits, and a power of two a tensor."
            )


def _settings(
    parts: RecipeParts, section: str, *, switch: str, usual: bool = False
) -> dict[str, Any] | None:
    """Return the settings of a step, or None where it is not asked for.

    The caller is then told of settings that nothing reads; a False asks for nothing.
    """
    fields: dict[str, Any] = getattr(parts, section)
    if parts.asked.get(section, usual):
        return fields
    parts.notes += [
        f"the option {parts.options[f'{section}.{name}']!r} has no effect without {switch}."
        for name, value in fields.items()
        if value is not False
    ]
    fields.clear()
    return None


def _simulation(parts: RecipeParts, on_npu: bool) -> Simulation | None:
    fields = _settings(parts, "simulate", switch="SimulateDPU", usual=on_npu)
    if fields is None:
        return None
    parts.emulate["simulate"] = SimulationSwitches(
        **{name: fields.pop(name) for name in [*fields] if name in _OF_SIMULATION}
    )
    return Simulation(**fields)


def _limits(parts: RecipeParts, on_npu: bool, method: Enum) -> Limits | None:
    asked = parts.calibration
    finer = asked.get("int16") or not asked.get("powers", True)
    in_powers = isinstance(method, PowerOfTwoMethod) and not finer
    if parts.asked.get("limits") and not in_powers:
        parts.drop("asked.limits", "it is about power-of-two scales, as of a PowerOfTwoMethod")
    fields = _settings(parts, "limits", switch="NPULimitationCheck", usual=on_npu)
    if fields is None:
        return None
    parts.emulate["limits"] = LimitDetails(**fields)
    return Limits()


def _equalization(parts: RecipeParts) -> CrossLayerEqualization | None:
    fields = _settings(parts, "equalize", switch="include_cle")
    if fields is None:
        return None
    if fields.pop("use_threshold", True) is False:
        fields["weight_threshold"] = None
    parts.emulate["equalize"] = EqualizationDetails(
        **{name: fields.pop(name) for name in [*fields] if name in _OF_EQUALIZATION}
    )
    return CrossLayerEqualization(**fields)


def _fine_tuning(parts: RecipeParts) -> FineTuning | None:
    fields = _settings(parts, "fine_tune", switch="include_fast_ft")
    if fields is None:
        return None
    fine_tune: FastFinetune = fields.setdefault("asked", read_fast_finetune(None))
    parts.notes += fine_tune.notes
    parts.emulate["fine_tune"] = fine_tune.details
    return fine_tune.method


def choose_ranges(method: Enum, parts: RecipeParts) -> dict[str, Any]:
    """Return how ranges and scales are chosen, as fields of a recipe."""
    drop_settings_of_other_methods(method, parts, _METHODS)
    asked = parts.calibration
    in_powers = isinstance(method, PowerOfTwoMethod)
    if in_powers and "weight" in asked:
        raise RecipeError("WeightCalibrateMethod is for float scales; weights get the same method.")
    symmetric = bool(asked.get("symmetric", in_powers))
    if not symmetric and asked.get("mode") == "most-common":
        parts.drop(
            "calibration.mode", "it counts scales of symmetric ranges; all data is one batch"
        )
    weights = asked.get("weight", MinMax())
    is_int16 = asked.get("int16") or isinstance(method, Int16Method)
    if is_int16 or (in_powers and not asked.get("powers", True)):
        make = _WITH_FINER_SCALES.get(method, _METHODS[method])
        if not in_powers:
            weights = _WEIGHT_METHODS.get(method, weights)
        scales = "int16" if is_int16 else "float"
        return {"ranges": make(asked, symmetric), "weight_ranges": weights, "scales": scales}
    return {
        "ranges": _METHODS[method](asked, symmetric),
        "weight_ranges": _WEIGHT_METHODS.get(method, weights),
        "scales": "power-of-two" if in_powers else "float",
    }


def _choose_nodes(parts: RecipeParts) -> None:
    """Complete the op types that are quantized, by the target and the format."""
    select, asked = parts.select, parts.asked
    if "op_types" not in select and asked.get("npu_transformer"):
        select["op_types"] = _TRANSFORMER_OP_TYPES
        select.setdefault("constant_weights_only", True)
    elif "op_types" not in select and (
        asked.get("npu_cnn") or FORMATS[parts.recipe["format"]].vendor_ops
    ):
        select["op_types"] = NPU_CNN.op_types or ()
    if asked.get("extra_op_types"):
        known = select.get("op_types") or sorted(DEFAULT_OP_TYPES)
        select["op_types"] = tuple(dict.fromkeys((*known, *asked["extra_op_types"])))
    select["unknown_names"] = "warn"  # ignored in silence there
