"""`extra_options` of the Vitis AI quantizer and of Quark, translated into a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bitwright.compat.onnxruntime.options import read_channel_axes, read_overrides
from bitwright.compat.options import (
    Changes,
    Read,
    RecipeParts,
    Row,
    as_given,
    checked,
    choice,
    negated,
    number,
    only,
    read_mapping,
    read_names,
    read_op_types,
    read_pair,
    read_path,
    read_switch,
    refuse_unknown,
    refused,
    to,
    translate,
    when_on,
)
from bitwright.compat.vai_q_onnx.blocks import attributes_of
from bitwright.compat.vai_q_onnx.enums import read_type
from bitwright.compat.vai_q_onnx.finetuning import read_fast_finetune
from bitwright.errors import RecipeError
from bitwright.recipe import (
    GPTQ,
    HQQ,
    MSE,
    MinMax,
    Nearest,
    Recipe,
    Selection,
    WeightOnly,
)
from bitwright.support.notices import warn_user

__all__ = [
    "ARGUMENTS",
    "OLD_ARGUMENTS",
    "OLD_NAMES",
    "OPTIONS",
    "REFUSED",
    "REFUSED_ARGUMENTS",
    "read_options",
    "read_request",
    "read_subgraphs",
    "weight_recipe",
]

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
    "specific_tensor_precision": "give the type of single tensors in TensorQuantOverrides",
    "crypto_mode": "give a ModelProto and no model_output to write nothing",
}

# Old option -> the name of today. Both work.
OLD_NAMES = {
    "MinMSEMode": "MinMSEModePof2Scale",
    "TensorsRangeFile": "SaveAndRestore",
    "IPULimitationCheck": "NPULimitationCheck",
}


def read_options(options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what the options ask for; an unknown one is ignored with a warning, as there.

    >>> read_options({"ConvertBNToConv": False}).rewrite
    {'batch_norm_to_conv': False}
    >>> read_options({"QuantizationPreference": "speed"})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: option 'QuantizationPreference' is not supported: set the \
options themselves.
    """
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
    """Return what arguments of `quantize_static` and its `extra_options` ask for.

    >>> read_request({"enable_dpu": True}, {"AlignPool": False}).notes
    ['enable_dpu is called enable_npu_cnn today.']
    """
    parts = read_options(options)
    notes = []
    for name, value in arguments.items():
        today = OLD_ARGUMENTS.get(name, name)
        changes = ARGUMENTS[today](name, value)
        parts.apply(name, changes)
        if changes and today != name:
            notes.append(f"{name} is called {today} today.")
    parts.notes[:0] = notes
    if parts.asked.get("npu_cnn") and parts.asked.get("npu_transformer"):
        raise RecipeError("enable_npu_cnn and enable_npu_transformer are two targets; choose one.")
    if parts.asked.get("all_op_types") and "op_types" in parts.select:
        raise RecipeError("QuantizeAllOpTypes contradicts op_types_to_quantize; choose one.")
    return parts


def read_subgraphs(what: str, given: Any) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Return the first and last nodes of each part that stays float."""
    try:
        return tuple((_read_ends(first), _read_ends(last)) for first, last in given or ())
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"{what} is a list of ([first nodes], [last nodes]), by name, not {given!r}."
        ) from error


def _read_ends(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise TypeError(given)
    return tuple(given)


def _read_excluded(what: str, given: Any) -> tuple[str, ...]:
    # A regular expression as Quark writes it has no "re:".
    names = read_names(what, given)
    return tuple(f"re:{name[1:]}" if name.startswith("^") else name for name in names)


def _names(path: str, read: Read = read_names) -> Row:
    """Return the row of a list, which asks for nothing where it is empty."""

    def row(what: str, given: Any) -> Changes:
        found = read(what, given)
        return {path: found} if found else {}

    return row


def _read_percentiles(what: str, given: Any) -> tuple[float, ...]:
    try:
        return tuple(float(percentile) for percentile in given)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{what} is a list of percentiles, not {given!r}.") from error


def _read_ranges(what: str, given: Any) -> dict[str, tuple[float, float]]:
    ranges = read_mapping(what, given, "input names to [low, high]")
    return {name: read_pair(f"{what} of {name!r}", ends) for name, ends in ranges.items()}


def _read_shapes(what: str, given: Any) -> dict[str, int | tuple[int, ...]]:
    """Return shapes from a dict, or from text such as "image:[1,3,8,8];mask:[1,8]"."""
    if isinstance(given, Mapping):
        return {
            str(name): sizes if isinstance(sizes, int) else tuple(sizes)
            for name, sizes in given.items()
        }
    found: dict[str, int | tuple[int, ...]] = {}
    for part in filter(None, str(given).replace(" ", "").split(";")):
        name, _, sizes = part.rpartition(":")
        if not name or not re.fullmatch(r"\[\d+(,\d+)*\]", sizes):
            raise RecipeError(f"{what} is like 'image:[1,3,224,224];mask:[1,8]', not {given!r}.")
        found[name] = tuple(int(size) for size in sizes[1:-1].split(","))
    return found


def _read_op_type_pairs(what: str, given: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(given, tuple | list) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in given
    ):
        raise RecipeError(f"{what} is a list of pairs of op types, not {given!r}.")
    return tuple(tuple(pair) for pair in given)


_CLEAN_UP = "optimize_model=False switches off all that cleans up"


def _simplify(what: str, given: Any) -> Changes:
    # There it is one of two passes that clean up; without it the other still runs.
    if not read_switch(what, given):
        warn_user(f"{what} has no effect: {_CLEAN_UP}.")
    return {}


_ACTIVATIONS = ("Clip", "Gelu", "LeakyRelu", "PRelu", "Relu")
_NORM_PAIRS = tuple(("InstanceNormalization", op_type) for op_type in _ACTIVATIONS)

OPTIONS: dict[str, Row] = {
    # Types and scales
    "ActivationSymmetric": to("recipe.activation_symmetric"),
    "WeightSymmetric": to("recipe.weight_symmetric"),
    "UseUnsignedReLU": to("recipe.unsigned_relu"),
    "QuantizeBias": to("recipe.quantize_bias"),
    "Int32Bias": when_on({"bias.int32": True}),
    "Int16Bias": when_on({"bias.int16": True}),
    "Int16Scale": to("calibration.int16"),
    "TensorQuantOverrides": to("recipe.overrides", read_overrides(read_type)),
    "AdjustWeightScaleForInt32Bias": to("place.adjust_for_bias"),
    "AdjustBiasScale": only(True, "a bias has the scale of its product, or one of its own"),
    "AlignTranspose": only(True, "a Transpose keeps the scale of its input"),
    "AlignReshape": only(True, "a Reshape keeps the scale of its input"),
    "AlignEltwiseQuantType": only(
        True, "constants of element-wise ops have the type of activations"
    ),
    "BF16QDQToCast": to("place.bfloat16_casts"),
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
    "PercentileCandidates": to("calibration.candidates", _read_percentiles),
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
    "RandomDataReaderInputDataRange": to("data.ranges", _read_ranges),
    "RandomDataReaderInputShape": to("data.shapes", lambda _, shapes: shapes),
    # Which nodes, and where pairs go
    "EnableSubgraph": to("select.subgraphs"),
    "MatMulConstBOnly": to("select.constant_weights_only"),
    "QuantizeAllOpTypes": to("asked.all_op_types"),
    "ForceQuantizeNoInputCheck": to("place.force_shared"),
    "AddQDQPairToWeight": to("place.weight_pairs"),
    "OpTypesToExcludeOutputQuantization": to("place.unquantized_outputs", read_op_types),
    "NodesToExcludeOutputQuantization": to("place.unquantized_nodes", read_names),
    "DedicatedQDQPair": to("place.dedicated_pairs"),
    "DedicateDQNode": to("place.dedicated_dequantizers"),
    "QDQOpTypePerChannelSupportToAxis": to("place.channel_axes", read_channel_axes),
    "UseQDQContribOps": to("place.contrib_ops"),
    "UseQDQVitisCustomOps": to("place.extended_ops"),
    "RemoveQDQConvRelu": to("fuse.Relu"),
    "RemoveQDQConvClip": to("fuse.Clip"),
    "RemoveQDQConvLeakyRelu": to("fuse.LeakyRelu"),
    "RemoveQDQConvPRelu": to("fuse.PRelu"),
    "RemoveQDQConvGelu": to("fuse.Gelu"),
    "RemoveQDQInstanceNorm": when_on({"fuse_pairs.instance_norm": _NORM_PAIRS}),
    "RemoveQDQMulAdd": when_on({"fuse_pairs.mul_add": (("Mul", "Add"),)}),
    "RemoveQDQBetweenOps": to("fuse_pairs.named", _read_op_type_pairs),
    "FoldRelu": to("place.keep_activations", negated),
    # Rewrites of the float graph
    "RemoveInputInit": to("recipe.keep_defaults", negated),
    "FoldBatchNorm": only(True, _CLEAN_UP),
    "SimplifyModel": _simplify,
    # `compat.quark` reads it; a warning is the caller's to filter otherwise.
    "IgnoreWarnings": checked(read_switch),
    "FillAllValueInfo": only(True, "every shape that is known is written"),
    "FixShapes": to("rewrite.fix_shapes", _read_shapes),
    "ConvertBNToConv": to("rewrite.batch_norm_to_conv"),
    "ConvertReduceMeanToGlobalAvgPool": to("rewrite.reduce_mean_to_pool"),
    "SplitLargeKernelPool": to("rewrite.split_large_pools"),
    "ConvertSplitToSlice": to("rewrite.split_to_slice"),
    "FuseInstanceNorm": to("rewrite.fuse_instance_norm"),
    "FuseL2Norm": to("rewrite.fuse_l2_norm"),
    "ConvertClipToRelu": to("rewrite.clip_to_relu"),
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
    "convert_fp16_to_fp32": to("rewrite.widen_interface"),
    "input_nodes": _names("select.input_nodes"),
    "output_nodes": _names("select.output_nodes"),
    "op_types_to_quantize": _names("select.op_types"),
    "extra_op_types_to_quantize": _names("asked.extra_op_types"),
    "nodes_to_quantize": _names("select.nodes"),
    "nodes_to_exclude": _names("select.exclude", _read_excluded),
    "subgraphs_to_exclude": _names("select.exclude_between", read_subgraphs),
    "enable_npu_cnn": when_on({"asked.npu_cnn": True}),
    "enable_npu_transformer": when_on({"asked.npu_transformer": True}),
    "include_cle": when_on({"asked.equalize": True}),
    "include_sq": to("asked.smooth"),
    "include_fast_ft": to("asked.fine_tune"),
    "vendor_names": to("place.vendor_names", as_given),
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
    "MinMSEModeFloatScale": "the search over float scales has one mode",
    "EnableDualQuantNodePairs": "use convert in TensorQuantOverrides for a second type",
    "CopySharedInit": "a constant that several nodes read has one scale for all of them",
    "FuseGelu": "a Gelu in pieces stays in pieces; export the model with opset 20",
    "FuseLayerNorm": "a layer norm in pieces stays in pieces; export the model with opset 17",
    "RemoveFusedQDQ": "name the activations with RemoveQDQConvRelu and its kin",
    "SkipPreprocess": "set optimize_model=False, and switch off what else is not wanted",
    "UsePowerOf2Scale": "calibrate_method says it: a PowerOfTwoMethod or a CalibrationMethod",
    "EnableVaimlBF16": "bfloat16 pairs are written as they are",
    "ActivationScaled": "float16 and bfloat16 have the scale 1",
    "WeightScaled": "float16 and bfloat16 have the scale 1",
    "ConvertOpsetVersion": "a model is raised to the opset that it needs, and to no other",
    "ShapeShifterYaml": _GRAPH_TOOL,
    "UserCustomOpLibPath": "a model with custom operators cannot be calibrated",
    "SaveTensorHistFig": "bitwright report has the histogram of every tensor",
    "EvalMetrics": "bitwright.quantize returns how each output compares with float",
    "EvalDataReader": "bitwright.quantize returns how each output compares with float",
    "QuantizationPreference": "set the options themselves",
    "CalibPassthroughOpTypes": "every quantized tensor is observed",
}

_ROWS: dict[str, Row] = {
    **OPTIONS,
    **{old: OPTIONS[today] for old, today in OLD_NAMES.items()},
    **{option: refused(reason) for option, reason in REFUSED.items()},
}

# Only weights ---------------------------------------------------------------------------------

# The options that have a meaning where only weights are quantized.
_WEIGHT_KEYS = {
    "CalibDataSize",
    "GPTQParams",
    "MatMulNBitsParams",
    "TmpDir",
    "UseGPTQ",
    "UseMatMulNBits",
    "UseRandomData",
}

_NBITS_SETTINGS = {
    "Algorithm": "DEFAULT",
    "GroupSize": 128,
    "Symmetric": True,
    "Bits": 4,
    "AccuracyLevel": 0,
}
# BlockSize is how many rows are corrected together, on which the result does not depend.
_GPTQ_SETTINGS = {
    "PercDamp": 0.01,
    "BlockSize": 128,
    "ActOrder": False,
    "MSE": False,
    "PerChannel": False,
}
# The rounding beside quantized activations has the scales of the model, and refits its codes until
# neither order nor damping matters. Bits and groups count for nothing there either.
_GPTQ_WITH_ACTIVATIONS = {
    **_GPTQ_SETTINGS,
    "Bits": 8,
    "GroupSize": -1,
    "WeightSymmetric": True,
}


def weight_recipe(
    options: Mapping[str, Any], select: Mapping[str, Any], name: str
) -> Recipe | None:
    """Return the recipe of options with `UseMatMulNBits`; None: they ask for something else.

    >>> options = {"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": 32, "Bits": 8}}
    >>> found = weight_recipe(options, {}, "nbits")
    >>> found.weights.bits, found.weights.block_size, found.weights.symmetric
    (8, 32, True)
    """
    if not options.get("UseMatMulNBits"):
        _warn_of_idle_settings(options)
        return None
    for key in options:
        if key not in _WEIGHT_KEYS:
            warn_user(
                f"option {key!r} has no effect with UseMatMulNBits, which leaves activations float."
            )
    given = _read_params(options, "MatMulNBitsParams", _NBITS_SETTINGS)
    tuned = _read_params(options, "GPTQParams", _GPTQ_SETTINGS)
    methods: dict[str, Nearest | HQQ | GPTQ] = {
        "DEFAULT": Nearest(clip=False),
        "HQQ": HQQ(),
        "GPTQ": GPTQ(
            damping=tuned["PercDamp"],
            act_order=tuned["ActOrder"],
            clip=tuned["MSE"],
            per_column=tuned["PerChannel"],
        ),
    }
    return Recipe(
        name=name,
        mode="weight-only",
        select=Selection(
            op_types=select.get("op_types", ("MatMul",)),
            nodes=select.get("nodes"),
            exclude=select.get("exclude", ()),
            exclude_between=select.get("exclude_between", ()),
        ),
        weights=WeightOnly(
            bits=given["Bits"],
            block_size=given["GroupSize"],
            # HQQ searches for a zero point, which a symmetric grid does not have.
            symmetric=given["Symmetric"] and given["Algorithm"] != "HQQ",
            rounding=choice(methods)("Algorithm in MatMulNBitsParams", given["Algorithm"]),
            accuracy_level=given["AccuracyLevel"] or None,
        ),
    )


def _warn_of_idle_settings(options: Mapping[str, Any]) -> None:
    """Warn of what is told about rounding and plays no part in a static model."""
    if options.get("MatMulNBitsParams"):
        warn_user("option 'MatMulNBitsParams' has no effect without UseMatMulNBits=True.")
    if options.get("GPTQParams") and not options.get("UseGPTQ"):
        warn_user("option 'GPTQParams' has no effect without UseGPTQ=True or UseMatMulNBits=True.")
    elif options.get("GPTQParams"):
        given = _read_params(options, "GPTQParams", _GPTQ_WITH_ACTIVATIONS)
        idle = [key for key, default in _GPTQ_WITH_ACTIVATIONS.items() if given[key] != default]
        for key in idle:
            if key != "BlockSize":
                warn_user(
                    f"{key} in GPTQParams has no effect beside quantized activations: types and "
                    "scales are those of the configuration, and codes are refitted in any order."
                )


def _read_params(
    options: Mapping[str, Any], key: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    given = read_mapping(f"option {key!r}", options.get(key), "settings")
    refuse_unknown(given, defaults, f" in {key}")
    for name, value in given.items():
        wanted = type(defaults[name])
        fits = isinstance(value, int if wanted is float else wanted) or type(value) is wanted
        if not fits or (wanted is int and isinstance(value, bool)):
            raise RecipeError(f"{name} in {key} is of the type {wanted.__name__}, not {value!r}.")
    return {**defaults, **given}
