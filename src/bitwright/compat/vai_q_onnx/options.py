"""`extra_options` of the Vitis AI quantizer and of Quark, translated into a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitwright.compat.onnxruntime.options import (
    Handler,
    RecipeParts,
    channel_axes,
    check_options,
    check_sample_count,
    flag,
    number,
    op_types,
    overrides,
    read_switch,
)
from bitwright.compat.vai_q_onnx.enums import read_type
from bitwright.compat.vai_q_onnx.finetuning import FastFinetune, read_fast_finetune
from bitwright.errors import RecipeError, did_you_mean

__all__ = ["OLD_NAMES", "VitisParts", "read_options"]


class VitisParts(RecipeParts):
    """The fields of a recipe for the NPU's tools, gathered option by option."""

    def __init__(self) -> None:
        super().__init__()
        self.rewrite: dict[str, Any] = {}
        self.simulate: dict[str, Any] = {}
        self.limits: dict[str, Any] = {}
        self.equalize: dict[str, Any] = {}
        self.scales: dict[str, Any] = {}
        self.fuse: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.fine_tune: FastFinetune | None = None
        self.sentences: list[str] = []
        """What the caller is told of old names."""


# Old name -> the name of today. Both work.
OLD_NAMES = {
    "MinMSEMode": "MinMSEModePof2Scale",
    "TensorsRangeFile": "SaveAndRestore",
    "IPULimitationCheck": "NPULimitationCheck",
}


def read_options(options: Mapping[str, Any] | None) -> VitisParts:
    """Return what the options ask for; an unknown key is an error with a suggestion.

    >>> read_options({"ConvertBNToConv": False}).rewrite
    {'batch_norm_to_conv': False}
    >>> read_options({"AlignConcatt": True})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown option 'AlignConcatt'. Did you mean 'AlignConcat'?
    >>> read_options({"QuantizationPreference": "speed"})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: option 'QuantizationPreference' is not supported: set the \
options themselves.
    """
    parts = VitisParts()
    options = check_options(options)
    for key, value in options.items():
        if key in OLD_NAMES:
            today = OLD_NAMES[key]
            if today in options:
                raise RecipeError(f"options {key!r} and {today!r} are the same; give one of them.")
            parts.sentences.append(f"option {key!r} is called {today!r} today.")
        handler = _HANDLERS.get(OLD_NAMES.get(key, key))
        if handler is not None:
            handler(parts, key, value)
        elif key in _REFUSED:
            _refuse(key, value)
        else:
            known = {*_HANDLERS, *OLD_NAMES, *_REFUSED}
            raise RecipeError(f"unknown option {key!r}.{did_you_mean(key, known)}")
    return parts


def _refuse(key: str, value: Any) -> None:
    """Say that an option is not supported, unless it asks for nothing."""
    if value is not None and value is not False and value not in ({}, [], ""):
        raise RecipeError(f"option {key!r} is not supported: {_REFUSED[key]}.")


def _min_mse_mode(parts: RecipeParts, key: str, value: Any) -> None:
    modes = {"All": "all", "MostCommon": "most-common"}
    if not isinstance(value, str) or value not in modes:
        raise RecipeError(
            f"unknown value {value!r} of option {key!r}.{did_you_mean(str(value), modes)}"
        )
    parts.calibration["mode"] = modes[value]


def _metric(parts: RecipeParts, key: str, value: Any) -> None:
    if value not in ("mae", "mse"):
        raise RecipeError(f"option {key!r} is 'mae' or 'mse', not {value!r}.")
    parts.calibration["metric"] = value


def _candidates(parts: RecipeParts, key: str, value: Any) -> None:
    try:
        parts.calibration["candidates"] = tuple(float(share) for share in value)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"option {key!r} is a list of percentiles, not {value!r}.") from error


def _weight_method(parts: RecipeParts, key: str, value: Any) -> None:
    name = getattr(value, "name", value)
    if name not in ("MinMax", "MinMSE"):
        raise RecipeError(f"option {key!r} is MinMax or MinMSE, not {name!r}.")
    parts.calibration["weight"] = name


def _input_ranges(parts: RecipeParts, key: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise RecipeError(f"option {key!r} is a dict of input names to [low, high], not {value!r}.")
    ranges = {}
    for name, pair in value.items():
        try:
            low, high = (float(end) for end in pair)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"option {key!r} maps {name!r} to [low, high], not {pair!r}.") from (
                error
            )
        ranges[name] = (low, high)
    assert isinstance(parts, VitisParts)
    parts.data["ranges"] = ranges


def _input_shapes(parts: RecipeParts, key: str, value: Any) -> None:
    assert isinstance(parts, VitisParts)
    if value:
        parts.data["shapes"] = value


def _bias_type(qtype: str) -> Handler:
    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if read_switch(f"option {key!r}", value):
            if parts.recipe.get("bias", qtype) != qtype:
                raise RecipeError("Int16Bias and Int32Bias contradict each other; choose one.")
            parts.recipe["bias"] = qtype

    return handle


def _check_flag(parts: RecipeParts, key: str, value: Any) -> None:
    read_switch(f"option {key!r}", value)


def _only(wanted: str, otherwise: str) -> Handler:
    """Handle a key of which only one word is what happens here anyway."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if value is not None and value != wanted:
            raise RecipeError(f"option {key!r} must be {wanted!r}, not {value!r}: {otherwise}.")

    return handle


def _pairs(parts: RecipeParts, key: str, value: Any) -> None:
    """Handle the list of op types between which no pair stands."""
    pairs = [] if value is None else value
    if not isinstance(pairs, tuple | list) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs
    ):
        raise RecipeError(f"option {key!r} is a list of pairs of op types, not {value!r}.")
    _fuse_pairs(parts, pairs)


def _fuse_pairs(parts: RecipeParts, pairs: Iterable[Sequence[str]]) -> None:
    found = (*parts.place.get("fuse_pairs", ()), *(tuple(pair) for pair in pairs))
    parts.place["fuse_pairs"] = tuple(dict.fromkeys(found))


def _fused(*pairs: tuple[str, str]) -> Handler:
    """Handle a switch that takes away the pairs between these op types."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if read_switch(f"option {key!r}", value):
            _fuse_pairs(parts, pairs)

    return handle


def _bare_nodes(parts: RecipeParts, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RecipeError(f"option {key!r} is a list of node names, not {value!r}.")
    parts.place["unquantized_nodes"] = tuple(value)


def _check_names(parts: RecipeParts, key: str, value: Any) -> None:
    """Check a list of op types whose biases are to be copies; all are, one for each reader."""
    if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
        raise RecipeError(f"option {key!r} is a list of op types, not {value!r}.")


def _kept_file(parts: RecipeParts, key: str, value: Any) -> None:
    """Handle the file that keeps what was observed: read if it is there, else written."""
    if value is None:
        return
    if not isinstance(value, str | Path):
        raise RecipeError(f"option {key!r} is the path of a file, not {value!r}.")
    assert isinstance(parts, VitisParts)
    parts.data["sketches"] = value


def _folder(parts: RecipeParts, key: str, value: Any) -> None:
    """Check a folder for temporary files, of which there are none."""
    if value is not None and not isinstance(value, str | Path):
        raise RecipeError(f"option {key!r} is the path of a folder, not {value!r}.")


def _fast_finetune(parts: RecipeParts, key: str, value: Any) -> None:
    assert isinstance(parts, VitisParts)
    if value is not None:
        parts.fine_tune = read_fast_finetune(value)


def _read_elsewhere(parts: RecipeParts, key: str, value: Any) -> None:
    """Leave a key to `weight_recipe`, which reads all that is about weights alone."""


def _must_be(wanted: bool, otherwise: str) -> Handler:
    """Handle a key of which only one value is what happens here anyway."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if value is not None and read_switch(f"option {key!r}", value) is not wanted:
            raise RecipeError(f"option {key!r} must be {wanted}: {otherwise}.")

    return handle


def _bias_correction(parts: RecipeParts, key: str, value: Any) -> None:
    """Their correction compares mean outputs, which is the sequential one here."""
    if read_switch(f"option {key!r}", value):
        parts.recipe["bias_correction"] = "sequential"


_CLEANED_UP = "optimize_model=False switches off all that cleans up"
_ACTIVATIONS = ("Clip", "Gelu", "LeakyRelu", "PRelu", "Relu")

_HANDLERS: dict[str, Handler] = {
    # Types and scales
    "ActivationSymmetric": flag("recipe", "activation_symmetric"),
    "WeightSymmetric": flag("recipe", "weight_symmetric"),
    "UseUnsignedReLU": flag("recipe", "unsigned_relu"),
    "QuantizeBias": flag("recipe", "quantize_bias"),
    "Int32Bias": _bias_type("int32"),
    "Int16Bias": _bias_type("int16"),
    "Int16Scale": flag("scales", "int16"),
    "TensorQuantOverrides": overrides(read_type),
    "AdjustWeightScaleForInt32Bias": flag("place", "adjust_for_bias"),
    "AdjustBiasScale": _must_be(True, "a bias has the scale of its product, or one of its own"),
    "AlignTranspose": _must_be(True, "a Transpose keeps the scale of its input"),
    "AlignReshape": _must_be(True, "a Reshape keeps the scale of its input"),
    "AlignEltwiseQuantType": _must_be(
        True, "constants of element-wise ops have the type of activations"
    ),
    "BF16WithClip": _must_be(True, "bfloat16 pairs saturate by themselves"),
    "RefineBlockAxis": _must_be(True, "blocks lie along what a product sums up"),
    "UseFP32Scale": _must_be(True, "float16 models are computed in float32 between their ends"),
    "QuantizeFP16": _must_be(True, "a float16 model is quantized as it is"),
    "CopyBiasInit": _check_names,
    # Calibration
    "CalibTensorRangeSymmetric": flag("calibration", "symmetric"),
    "CalibMovingAverage": flag("calibration", "moving_average"),
    "CalibMovingAverageConstant": number("calibration", "constant", float, 0.0),
    "MinMSEModePof2Scale": _min_mse_mode,
    "WeightCalibrateMethod": _weight_method,
    "Percentile": number("calibration", "percentile", float, 0.0),
    "LWPMetric": _metric,
    "PercentileCandidates": _candidates,
    "NumBins": number("calibration", "bins", int, 0),
    "NumQuantizedBins": number("calibration", "levels", int, 2),
    "CalibDataSize": number("data", "limit", int, 1),
    # These bound memory or time; one streaming pass is within any such bound.
    "CalibOptimizeMem": _check_flag,
    "CalibWorkerNum": check_sample_count,
    "LWPUseHistogram": _must_be(True, "percentiles are read from a histogram of all data"),
    "SaveAndRestore": _kept_file,
    "TmpDir": _folder,
    "UseRandomData": flag("data", "random"),
    "RandomDataReaderInputDataRange": _input_ranges,
    "RandomDataReaderInputShape": _input_shapes,
    # Which nodes, and where pairs go
    "EnableSubgraph": flag("select", "subgraphs"),
    "MatMulConstBOnly": flag("select", "constant_weights_only"),
    "QuantizeAllOpTypes": flag("select", "all_op_types"),
    "ForceQuantizeNoInputCheck": flag("place", "force_shared"),
    "AddQDQPairToWeight": flag("place", "weight_pairs"),
    "OpTypesToExcludeOutputQuantization": op_types,
    "NodesToExcludeOutputQuantization": _bare_nodes,
    "DedicatedQDQPair": flag("place", "dedicated_pairs"),
    "DedicateDQNode": flag("place", "dedicated_dequantizers"),
    "QDQOpTypePerChannelSupportToAxis": channel_axes,
    "UseQDQVitisCustomOps": flag("place", "extended_ops"),
    "RemoveQDQConvRelu": flag("fuse", "Relu"),
    "RemoveQDQConvClip": flag("fuse", "Clip"),
    "RemoveQDQConvLeakyRelu": flag("fuse", "LeakyRelu"),
    "RemoveQDQConvPRelu": flag("fuse", "PRelu"),
    "RemoveQDQConvGelu": flag("fuse", "Gelu"),
    "RemoveQDQInstanceNorm": _fused(*(("InstanceNormalization", op) for op in _ACTIVATIONS)),
    "RemoveQDQMulAdd": _fused(("Mul", "Add")),
    "RemoveQDQBetweenOps": _pairs,
    "FoldRelu": flag("place", "keep_activations", negate=True),
    # Rewrites of the float graph
    "RemoveInputInit": flag("recipe", "keep_defaults", negate=True),
    "FoldBatchNorm": _must_be(True, _CLEANED_UP),
    "SimplifyModel": _must_be(True, _CLEANED_UP),
    "FillAllValueInfo": _must_be(True, "every shape that is known is written"),
    "ConvertBNToConv": flag("rewrite", "batch_norm_to_conv"),
    "ConvertReduceMeanToGlobalAvgPool": flag("rewrite", "reduce_mean_to_pool"),
    "SplitLargeKernelPool": flag("rewrite", "split_large_pools"),
    "ConvertSplitToSlice": flag("rewrite", "split_to_slice"),
    "FuseInstanceNorm": flag("rewrite", "fuse_instance_norm"),
    "FuseL2Norm": flag("rewrite", "fuse_l2_norm"),
    "ConvertClipToRelu": flag("rewrite", "clip_to_relu"),
    "ReplaceClip6Relu": flag("rewrite", "clip6_to_relu"),
    # Stand-ins for what the NPU computes
    "SimulateDPU": flag("simulate", "asked"),
    "ConvertLeakyReluToDPUVersion": flag("simulate", "leaky_relu"),
    "ConvertSigmoidToHardSigmoid": flag("simulate", "sigmoid"),
    "ConvertHardSigmoidToDPUVersion": flag("simulate", "hard_sigmoid"),
    "ConvertAvgPoolToDPUVersion": flag("simulate", "average_pool"),
    "ConvertReduceMeanToDPUVersion": flag("simulate", "reduce_mean"),
    "ConvertSoftmaxToDPUVersion": flag("simulate", "softmax"),
    "ConvertInstanceNormToDPUVersion": flag("simulate", "instance_norm"),
    "ConvertClipToDPUVersion": flag("simulate", "clip"),
    # Limits of the NPU
    "NPULimitationCheck": flag("limits", "asked"),
    "AdjustShiftCut": flag("limits", "shift_cut"),
    "AdjustShiftBias": flag("limits", "shift_bias"),
    "AdjustShiftRead": flag("limits", "shift_read"),
    "AdjustShiftWrite": flag("limits", "shift_write"),
    "AdjustHardSigmoid": flag("limits", "hard_sigmoid"),
    "AdjustShiftSwish": flag("limits", "shift_swish"),
    "AlignConcat": flag("limits", "align_concat"),
    "AlignPool": flag("limits", "align_pool"),
    "AlignPad": flag("limits", "align_pad"),
    "AlignSlice": flag("limits", "align_slice"),
    "MaxLoopNum": number("limits", "max_rounds", int, 1),
    # Equalization
    "CLESteps": number("equalize", "steps", int, -1),
    "CLETotalLayerDiffThreshold": number("equalize", "total_layer_diff_threshold", float, 0.0),
    "CLEScaleAppendBias": flag("equalize", "append_bias"),
    "CLEWeightThreshold": number("equalize", "weight_threshold", float, 0.0),
    "CLEScaleUseThreshold": flag("equalize", "use_threshold"),
    "CLEBalanceMethod": _only("max", "the largest weight of a channel counts"),
    # Fine-tuning
    "FastFinetune": _fast_finetune,
    "BiasCorrection": _bias_correction,
    "SmoothAlpha": number("smooth", "alpha", float, 0.0),
    # Weights alone
    "UseMatMulNBits": _check_flag,
    "MatMulNBitsParams": _read_elsewhere,
    "GPTQParams": _read_elsewhere,
}

_WEIGHT_ONLY = "use UseMatMulNBits, or a weight-only recipe of bitwright.quantize"
_SENSITIVITY = "bitwright.find_sensitivity says which nodes to put back to 16 bits or float"
_GRAPH_TOOL = "change the model before quantizing it"

# Keys of the newest package that nothing here answers to, and why.
_REFUSED = {
    "UseGPTQ": _WEIGHT_ONLY,
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
    "BF16QDQToCast": "bfloat16 pairs are written as they are",
    "EnableVaimlBF16": "bfloat16 pairs are written as they are",
    "ActivationScaled": "float16 and bfloat16 have the scale 1",
    "WeightScaled": "float16 and bfloat16 have the scale 1",
    "BFPAttributes": "blocks have the attributes of their number type",
    "MXAttributes": "blocks have the attributes of their number type",
    "ConvertOpsetVersion": "a model is raised to the opset that it needs, and to no other",
    "FixShapes": _GRAPH_TOOL,
    "ShapeShifterYaml": _GRAPH_TOOL,
    "UserCustomOpLibPath": "a model with custom operators cannot be calibrated",
    "SaveTensorHistFig": "bitwright report has the histogram of every tensor",
    "EvalMetrics": "bitwright.quantize returns how each output compares with float",
    "EvalDataReader": "bitwright.quantize returns how each output compares with float",
    "QuantizationPreference": "set the options themselves",
    "CalibPassthroughOpTypes": "every quantized tensor is observed",
}
