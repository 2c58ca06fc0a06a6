"""`extra_options` of the Vitis AI quantizer and of Quark, translated into a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.compat.onnxruntime.options import read_channel_axes, read_overrides
from bitwright.compat.options import (
    Changes,
    RecipeParts,
    Row,
    as_given,
    checked,
    choice,
    negated,
    number,
    only,
    read_names,
    read_op_types,
    read_path,
    read_switch,
    refused,
    to,
    translate,
    when_on,
    without_effect,
)
from bitwright.compat.vai_q_onnx.blocks import attributes_of
from bitwright.compat.vai_q_onnx.enums import read_type
from bitwright.compat.vai_q_onnx.finetuning import read_fast_finetune
from bitwright.compat.vai_q_onnx.values import (
    read_excluded,
    read_op_type_pairs,
    read_percentiles,
    read_ranges,
    read_shapes,
    read_subgraphs,
    unless_empty,
)
from bitwright.errors import RecipeError
from bitwright.recipe import MSE, MinMax
from bitwright.support.wording import warn_user

# Old argument -> the name of today. Both work.
OLD_ARGUMENTS = {
    "enable_dpu": "enable_npu_cnn",
    "enable_ipu_cnn": "enable_npu_cnn",
    "enable_ipu_transformer": "enable_npu_transformer",
    "inclue_cle": "include_cle",
}

# Arguments of the newest package that nothing here answers to, and why.
REFUSED_ARGUMENTS = {
    "include_rotation": "there is no rotation of weights yet",
    "include_auto_mp": "bitwright.find_sensitivity says which nodes to keep in 16 bits or float",
    "crypto_mode": "give a ModelProto and no model_output to write nothing",
}

# Old option -> the name of today. Both work.
OLD_NAMES = {
    "MinMSEMode": "MinMSEModePof2Scale",
    "TensorsRangeFile": "SaveAndRestore",
    "IPULimitationCheck": "NPULimitationCheck",
}


def read_options(options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what the options ask for; an unknown one is ignored with a warning, as there."""
    parts = RecipeParts()
    for option, changes in translate(options, _ROWS, ignore=True):
        if option in OLD_NAMES:
            today = OLD_NAMES[option]
            if today in (options or {}):
                raise RecipeError(f"{option!r} and {today!r} are the same option; give one.")
            parts.notes.append(f"option {option!r} is called {today!r} today.")
        parts.apply(option, changes)
    return parts


def read_request(arguments: Mapping[str, Any], options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what arguments of `quantize_static` and its `extra_options` ask for."""
    parts = read_options(options)
    notes = []
    for name, value in arguments.items():
        today = OLD_ARGUMENTS.get(name, name)
        changes = ARGUMENTS[today](name, value)
        parts.apply(name, changes)
        if changes and today != name:
            notes.append(f"{name} is called {today} today.")
    parts.notes[:0] = notes
    mixed = parts.asked.get("mixed")
    if mixed and parts.asked.get("specific_tensors"):
        parts.recipe["overrides"] = {**mixed, **parts.recipe.get("overrides", {})}
    elif mixed:
        parts.notes.append("MixedPrecisionTensor has no effect without specific_tensor_precision.")
    if parts.asked.get("as_it_is"):
        parts.recipe["optimize"] = False
    if parts.asked.get("npu_cnn") and parts.asked.get("npu_transformer"):
        raise RecipeError("enable_npu_cnn and enable_npu_transformer are two targets; choose one.")
    if parts.asked.get("all_op_types") and "op_types" in parts.select:
        raise RecipeError("QuantizeAllOpTypes contradicts op_types_to_quantize; choose one.")
    return parts


_COMPARED = "bitwright.quantize returns how each output compares with float"
_CLEAN_UP = "optimize_model=False switches off all that cleans up"


def _simplify(what: str, given: Any) -> Changes:
    # There it is one of two passes that clean up; without it the other still runs.
    if not read_switch(what, given):
        warn_user(f"{what} has no effect: {_CLEAN_UP}.")
    return {}


def _mixed_tensors(what: str, given: Any) -> Changes:
    """Return overrides from number types, each with the tensors that get it."""
    if not isinstance(given, Mapping):
        raise RecipeError(f"{what} maps number types to lists of tensors, not {given!r}.")
    entries = {
        tensor: [{"quant_type": kind}]
        for kind, tensors in given.items()
        for tensor in read_names(what, tensors)
    }
    return {"asked.mixed": read_overrides(read_type)(what, entries)}


# On by default where the model goes to the NPU's CNN compiler; SkipPreprocess leaves them out.
NPU_REWRITES = (
    "batch_norm_to_conv reduce_mean_to_pool split_large_pools split_to_slice swish_to_mul "
    "conv_attributes".split()
)
_AS_IT_IS = {f"rewrite.{name}": False for name in NPU_REWRITES} | {"asked.as_it_is": True}
_ACTIVATIONS = ("Clip", "Gelu", "LeakyRelu", "PRelu", "Relu")
_NORM_PAIRS = tuple(("InstanceNormalization", op_type) for op_type in _ACTIVATIONS)

OPTIONS: dict[str, Row] = {
    # Types and scales
    "ActivationSymmetric": to("recipe.activation_symmetric"),
    "WeightSymmetric": to("recipe.weight_symmetric"),
    "UseUnsignedReLU": to("emulate.unsigned_relu"),
    "QuantizeBias": to("recipe.quantize_bias"),
    "Int32Bias": when_on({"bias.int32": True}),
    "Int16Bias": when_on({"bias.int16": True}),
    "Int16Scale": to("calibration.int16"),
    "TensorQuantOverrides": to("recipe.overrides", read_overrides(read_type)),
    "MixedPrecisionTensor": _mixed_tensors,
    "SpecificTensorPrecision": to("asked.specific_tensors"),
    "UsePowerOf2Scale": to("calibration.powers"),
    "AdjustWeightScaleForInt32Bias": to("emulate.adjust_for_bias"),
    "AdjustBiasScale": only(True, "a bias has the scale of its product, or one of its own"),
    "AlignTranspose": only(True, "a Transpose keeps the scale of its input"),
    "AlignReshape": only(True, "a Reshape keeps the scale of its input"),
    "AlignEltwiseQuantType": to(
        "emulate.constant_operands",
        lambda what, value: "activation" if read_switch(what, value) else "weight",
    ),
    "BF16QDQToCast": to("emulate.bfloat16_casts"),
    # They also say which number type is meant.
    "BFPAttributes": attributes_of("BFPAttributes"),
    "MXAttributes": attributes_of("MXAttributes"),
    "BF16WithClip": only(True, "bfloat16 pairs saturate by themselves"),
    "RefineBlockAxis": only(True, "blocks lie along what a product sums up"),
    "UseFP32Scale": only(True, "float16 models are computed in float32 between their ends"),
    "QuantizeFP16": only(True, "a float16 model is quantized as it is"),
    # Every reader of a bias has a copy of its own.
    "CopyBiasInit": checked(read_op_types),
    # Calibration
    "CalibTensorRangeSymmetric": to("calibration.symmetric"),
    "CalibMovingAverage": to("calibration.moving_average"),
    "CalibMovingAverageConstant": to("calibration.constant", number(float, 0.0)),
    "MinMSEModePof2Scale": to(
        "calibration.mode", choice({"All": "all", "MostCommon": "most-common"})
    ),
    "WeightCalibrateMethod": to(
        "calibration.weight", choice({"MinMax": MinMax(), "MinMSE": MSE()})
    ),
    "Percentile": to("calibration.percentile", number(float, 0.0)),
    "LWPMetric": to("calibration.metric", choice({"mae": "mae", "mse": "mse"})),
    "PercentileCandidates": to("calibration.candidates", read_percentiles),
    "NumBins": to("calibration.bins", number(int, 0)),
    "NumQuantizedBins": to("calibration.levels", number(int, 2)),
    "CalibDataSize": to("data.limit", number(int, 1)),
    # These bound memory or time; one streaming pass is within any such bound.
    "CalibOptimizeMem": checked(read_switch),
    "CalibWorkerNum": checked(number(int, 1)),
    "LWPUseHistogram": only(True, "percentiles are read from a histogram of all data"),
    # Read if it is there, else written.
    "SaveAndRestore": to("data.sketches", read_path),
    "TmpDir": checked(read_path),
    "UseRandomData": to("data.random"),
    "RandomDataReaderInputDataRange": to("data.ranges", read_ranges),
    "RandomDataReaderInputShape": to("data.shapes", lambda _, shapes: shapes),
    # Which nodes, and where pairs go
    "EnableSubgraph": to("select.subgraphs"),
    "MatMulConstBOnly": to("select.constant_weights_only"),
    "QuantizeAllOpTypes": to("asked.all_op_types"),
    "ForceQuantizeNoInputCheck": to("place.force_shared"),
    "AddQDQPairToWeight": to("emulate.weight_pairs"),
    "OpTypesToExcludeOutputQuantization": to("place.unquantized_outputs", read_op_types),
    "NodesToExcludeOutputQuantization": to("emulate.unquantized_nodes", read_names),
    "DedicatedQDQPair": to("emulate.dedicated_pairs"),
    "DedicateDQNode": to("emulate.dedicated_dequantizers"),
    "QDQOpTypePerChannelSupportToAxis": to("emulate.channel_axes", read_channel_axes),
    "UseQDQContribOps": to("emulate.contrib_ops"),
    "UseQDQVitisCustomOps": to("emulate.extended_ops"),
    "RemoveQDQConvRelu": to("fuse.Relu"),
    "RemoveQDQConvClip": to("fuse.Clip"),
    "RemoveQDQConvLeakyRelu": to("fuse.LeakyRelu"),
    "RemoveQDQConvPRelu": to("fuse.PRelu"),
    "RemoveQDQConvGelu": to("fuse.Gelu"),
    "RemoveQDQInstanceNorm": when_on({"fuse_pairs.instance_norm": _NORM_PAIRS}),
    "RemoveQDQMulAdd": when_on({"fuse_pairs.mul_add": (("Mul", "Add"),)}),
    "RemoveQDQBetweenOps": to("fuse_pairs.named", read_op_type_pairs),
    "FoldRelu": to("emulate.keep_activations", negated),
    # Rewrites of the float graph
    "RemoveInputInit": to("recipe.keep_defaults", negated),
    "FoldBatchNorm": only(True, _CLEAN_UP),
    "SimplifyModel": _simplify,
    # `compat.quark` reads it; a warning is the caller's to filter otherwise.
    "IgnoreWarnings": checked(read_switch),
    "FillAllValueInfo": only(True, "every shape that is known is written"),
    "FixShapes": to("rewrite.fix_shapes", read_shapes),
    "ConvertBNToConv": to("rewrite.batch_norm_to_conv"),
    "ConvertReduceMeanToGlobalAvgPool": to("rewrite.reduce_mean_to_pool"),
    "SplitLargeKernelPool": to("rewrite.split_large_pools"),
    "ConvertSplitToSlice": to("rewrite.split_to_slice"),
    "FuseInstanceNorm": to("rewrite.fuse_instance_norm"),
    "FuseL2Norm": to("rewrite.fuse_l2_norm"),
    "FuseGelu": to("rewrite.fuse_gelu"),
    "FuseLayerNorm": to("rewrite.fuse_layer_norm"),
    "SkipPreprocess": when_on(_AS_IT_IS),
    "ConvertOpsetVersion": to("data.opset", number(int, 1)),
    "ConvertClipToRelu": to("emulate.clip_to_relu"),
    "ReplaceClip6Relu": to("rewrite.clip6_to_relu"),
    # Stand-ins for what the NPU computes
    "SimulateDPU": to("asked.simulate"),
    "ConvertLeakyReluToDPUVersion": to("simulate.leaky_relu"),
    "ConvertSigmoidToHardSigmoid": to("simulate.sigmoid"),
    "ConvertHardSigmoidToDPUVersion": to("simulate.hard_sigmoid"),
    "ConvertAvgPoolToDPUVersion": to("simulate.average_pool"),
    "ConvertReduceMeanToDPUVersion": to("simulate.reduce_mean"),
    "ConvertSoftmaxToDPUVersion": to("simulate.softmax"),
    "ConvertInstanceNormToDPUVersion": to("simulate.instance_norm"),
    "ConvertClipToDPUVersion": to("simulate.clip"),
    # Limits of the NPU
    "NPULimitationCheck": to("asked.limits"),
    "AdjustShiftCut": to("limits.shift_cut"),
    "AdjustShiftBias": to("limits.shift_bias"),
    "AdjustShiftRead": to("limits.shift_read"),
    "AdjustShiftWrite": to("limits.shift_write"),
    "AdjustHardSigmoid": to("limits.hard_sigmoid"),
    "AdjustShiftSwish": to("limits.shift_swish"),
    "AlignConcat": to("limits.align_concat"),
    "AlignPool": to("limits.align_pool"),
    "AlignPad": to("limits.align_pad"),
    "AlignSlice": to("limits.align_slice"),
    "MaxLoopNum": to("limits.max_rounds", number(int, 1)),
    # Equalization
    "CLESteps": to("equalize.steps", number(int, -1)),
    "CLETotalLayerDiffThreshold": to("equalize.total_layer_diff_threshold", number(float, 0.0)),
    "CLEScaleAppendBias": to("equalize.append_bias"),
    "CLEWeightThreshold": to("equalize.weight_threshold", number(float, 0.0)),
    "CLEScaleUseThreshold": to("equalize.use_threshold"),
    "CLEBalanceMethod": only("max", "the largest weight of a channel counts"),
    # Fine-tuning
    "FastFinetune": to("fine_tune.asked", lambda _, options: read_fast_finetune(options)),
    # Theirs compares mean outputs, which is the sequential one here.
    "BiasCorrection": when_on({"recipe.bias_correction": "sequential"}),
    "SmoothAlpha": to("smooth.alpha", number(float, 0.0)),
    # Theirs rounds the weights of MatMul after all else, as integers of 8 bits.
    "UseGPTQ": when_on({"recipe.rounding": "gptq"}),
    # They leave the model as it is
    "SaveTensorHistFig": without_effect("bitwright report has the histogram of every tensor"),
    "EvalMetrics": without_effect(_COMPARED),
    "EvalDataReader": without_effect(_COMPARED),
    "CalibPassthroughOpTypes": without_effect("every quantized tensor is observed"),
    "MinMSEModeFloatScale": without_effect("the search over float scales has one mode"),
    # Only weights: `weight_recipe` reads these
    "UseMatMulNBits": checked(read_switch),
    "MatMulNBitsParams": lambda _, settings: {},
    "GPTQParams": lambda _, settings: {},
}
"""The name of an option -> its row; a new option is one more."""

ARGUMENTS: dict[str, Row] = {
    "quant_format": to("asked.format", as_given),
    "calibrate_method": to("asked.method", as_given),
    "activation_type": to("asked.activation", as_given),
    "weight_type": to("asked.weight", as_given),
    "per_channel": to("recipe.per_channel"),
    "reduce_range": to("recipe.reduce_range"),
    "optimize_model": to("recipe.optimize"),
    "convert_nchw_to_nhwc": to("rewrite.channels_last"),
    "convert_fp16_to_fp32": to("emulate.widen_interface"),
    "input_nodes": unless_empty("select.input_nodes"),
    "output_nodes": unless_empty("select.output_nodes"),
    "op_types_to_quantize": unless_empty("select.op_types"),
    "extra_op_types_to_quantize": unless_empty("asked.extra_op_types"),
    "nodes_to_quantize": unless_empty("select.nodes"),
    "nodes_to_exclude": unless_empty("select.exclude", read_excluded),
    "subgraphs_to_exclude": unless_empty("select.exclude_between", read_subgraphs),
    "enable_npu_cnn": when_on({"asked.npu_cnn": True}),
    "enable_npu_transformer": when_on({"asked.npu_transformer": True}),
    "include_cle": when_on({"asked.equalize": True}),
    "include_sq": to("asked.smooth"),
    "include_fast_ft": to("asked.fine_tune"),
    "specific_tensor_precision": when_on({"asked.specific_tensors": True}),
    "vendor_names": to("emulate.vendor_names", as_given),
}
"""The name of an argument of `quantize_static` -> its row."""

_WEIGHT_ONLY = "use UseMatMulNBits, or a weight-only recipe of bitwright.quantize"
_SENSITIVITY = "bitwright.find_sensitivity says which nodes to keep in 16 bits or float"
_GRAPH_TOOL = "change the model before quantizing it"

# Options of the newest package that nothing here answers to, and why.
REFUSED = {
    "WeightsOnly": _WEIGHT_ONLY,
    "AutoMixprecision": _SENSITIVITY,
    "Scenario": "Distribution has one way of reading the standard deviation",
    "EnableDualQuantNodePairs": "use convert in TensorQuantOverrides for a second type",
    "CopySharedInit": "a constant that several nodes read has one scale for all of them",
    "RemoveFusedQDQ": "name the activations with RemoveQDQConvRelu and its kin",
    "EnableVaimlBF16": "bfloat16 pairs are written as they are",
    "ActivationScaled": "float16 and bfloat16 have the scale 1",
    "WeightScaled": "float16 and bfloat16 have the scale 1",
    "ShapeShifterYaml": _GRAPH_TOOL,
    "UserCustomOpLibPath": "a model with custom operators cannot be calibrated",
    "QuantizationPreference": "set the options themselves",
}

_ROWS: dict[str, Row] = {
    **OPTIONS,
    **{old: OPTIONS[today] for old, today in OLD_NAMES.items()},
    **{option: refused(reason) for option, reason in REFUSED.items()},
}
