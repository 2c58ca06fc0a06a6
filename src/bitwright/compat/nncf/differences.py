"""Differences from NNCF's quantization of ONNX models, one row each, as its guide shows."""

from __future__ import annotations

from bitwright.compat.differences import Difference

_ADVANCED = "AdvancedQuantizationParameters"
_ESTIMATOR = "quantization.range_estimator.RangeEstimatorParameters"
_RESTORER = "quantization.advanced_parameters.AdvancedAccuracyRestorerParameters"

DEVICE = Difference(
    "quantize",
    "`target_device` chooses the operators that a device quantizes",
    "has no effect",
    "the model is made for ONNX Runtime, whose kernels are what is measured",
    warns=True,
)
UNREAD = Difference(
    _ADVANCED,
    "with ONNX models nothing reads `inplace_statistics`, `disable_channel_alignment` and "
    "`clipping_value`",
    "has no effect",
    "it has none for ONNX models there, either",
    warns=True,
)
OUTPUTS = Difference(
    _ADVANCED,
    "`quantize_outputs` puts a quantizer in front of each output of the model, and without it none "
    "is there",
    "has no effect",
    "outputs are quantized where the kernel that computes them is faster so, as that of a "
    "convolution, and float elsewhere",
    warns=True,
)
PROPAGATION = Difference(
    _ADVANCED,
    "`quantizer_propagation_rule` says which readers of a tensor share a quantizer",
    "has no effect",
    "a tensor has one quantizer for all its readers",
    warns=True,
)
BATCHES = Difference(
    _ADVANCED,
    "without `batchwise_statistics` each item of a batch counts for the mean of extremes",
    "has no effect",
    "what the dataset gives at once counts once; give single items",
    warns=True,
)
BIASES = Difference(
    _ADVANCED,
    "`bias_correction_params`: a threshold that corrections must be below, and whether layers "
    "without a bias get one",
    "has no effect",
    "a correction is kept where it lowers the error on samples that it was not computed from, and "
    "all layers but products without a bias are corrected",
    warns=True,
)
CHANNELS = Difference(
    _ADVANCED,
    "`per_channel` activations have a scale for each channel in front of depthwise convolutions, "
    "and are an error with other layers",
    "has no effect",
    "ONNX Runtime's integer kernels take one scale for an activation",
    warns=True,
)
NARROW = Difference(
    _ADVANCED,
    "`narrow_range` of activations and of asymmetric weights is an error",
    "has no effect",
    "zero lies where the range puts it, and all levels are used",
    warns=True,
)
ZERO_POINTS = Difference(
    _ADVANCED,
    "ASYMMETRIC weights have a zero point for each channel",
    "leaves weights symmetric",
    "ONNX Runtime's integer kernels take one zero point for a weight: give per_channel=False, too",
    warns=True,
)
SIGNS = Difference(
    _ADVANCED,
    "`signedness_to_force=False` is an error",
    "has no effect",
    "weights are int8, and activations uint8 where they can be",
    warns=True,
)
CONVOLUTIONS = Difference(
    _ADVANCED,
    "`smooth_quant_alphas`: convolutions, too",
    "has no effect",
    "inputs of matrix products alone are smoothed",
    warns=True,
)
NEAREST = Difference(
    _ESTIMATOR,
    "medians of the samples' extremes, and means without outliers",
    "is taken as the mean of extremes",
    "one pass keeps sums of extremes, not all of them; QUANTILE and HISTOGRAM clip outliers",
    warns=True,
)
ENDS = Difference(
    _ESTIMATOR,
    "the ends of an asymmetric range are found in two ways",
    "is found as the maximum is",
    "a range method finds both ends",
    warns=True,
)
SEARCH = Difference(
    _RESTORER,
    "`max_num_iterations`, `ranking_subset_size`, `num_ranking_workers` and `restore_mode` steer "
    "how groups of quantizers are ranked and removed",
    "has no effect",
    "error and cost of each unit are measured once, and a dozen mixtures are evaluated at most",
    warns=True,
)
MISSED = Difference(
    "quantize_with_accuracy_control",
    "a drop that cannot be kept to: the last model, and a line in the log",
    "misses max_drop",
    "no mixture of types that was tried keeps the metric; this is the closest model",
    warns=True,
)

SENSITIVITY = Difference(
    "compress_weights",
    "`sensitivity_metric` and `ratio` say which weights get eight bits: those with the largest "
    "error, or the largest inputs",
    "has no effect",
    "what each weight loses is measured at the end of its branch",
    warns=True,
)
PLACES = Difference(
    "compress_weights",
    "`ratio` without a dataset: the weights with the largest error get eight bits",
    "goes by place",
    "without data the values of attention and the last products of some layers get them, as in "
    "llama.cpp; give a dataset for the exact share",
    warns=True,
)
DATALESS = Difference(
    "compress_weights",
    "`awq` without a dataset scales by the weights alone",
    "has no effect",
    "AWQ scales by what a layer reads; give a dataset",
    warns=True,
)

SEARCHES = Difference(
    "AdvancedCompressionParameters",
    "steps and strengths of AWQ and of scale estimation, and how group sizes are adjusted",
    "has no effect",
    "the searches here have steps of their own, and groups of any size are stored",
    warns=True,
)

ACCURACY_CONTROL = (
    MISSED,
    SEARCH,
    Difference(
        "quantize_with_accuracy_control",
        "groups of quantizers are removed one after the other, each judged by up to 300 items, and "
        "the metric is taken of the whole set after each",
        "`bitwright.tune`: error and cost of every unit are measured once, and the metric decides "
        "between the best mixtures of them, a dozen at most",
        "it takes less time, and looks for the fastest model within the drop",
    ),
    Difference(
        "quantize_with_accuracy_control",
        "the drop is that of the items which the search was steered by",
        "a fifth of the validation set is kept for the end, and the drop is confirmed on it; the "
        "set has 16 items at least",
        "a figure that was searched for is too good",
    ),
    Difference(
        "quantize_with_accuracy_control",
        "with ONNX models `validation_fn` must return a number for each item beside the metric",
        "it may; where these are what the metric is the mean of, fewer differences are chance",
        "mAP and F1 have no number for each item",
    ),
    Difference(
        _RESTORER,
        "`tune_hyperparams` tries ranges, presets and strengths of SmoothQuant before groups are "
        "removed",
        "with it and without, the steps of `effort` that lower the error are tried before units "
        "get more bits",
        "what costs no speed comes before what does",
    ),
)

QUANTIZE = (
    DEVICE,
    UNREAD,
    OUTPUTS,
    PROPAGATION,
    BATCHES,
    BIASES,
    CHANNELS,
    NARROW,
    SIGNS,
    ZERO_POINTS,
    CONVOLUTIONS,
    NEAREST,
    ENDS,
    Difference(
        _ADVANCED,
        "without `overflow_fix` the first convolutions have weights of seven bits",
        "they have eight; `FIRST_LAYER` gives them seven, and `ENABLE` gives them to all",
        "CPUs with VNNI lose by it, and `bitwright verify` finds sums that can be too large "
        "elsewhere",
    ),
    Difference(
        _ESTIMATOR,
        "QUANTILE is the mean of the samples' quantiles",
        "it is the quantile of the values of all samples",
        "it does not depend on how many values a sample has",
    ),
    Difference(
        _ESTIMATOR,
        "HISTOGRAM searches the range with the least error in the bins of a histogram",
        "`MSE`, the same search among the values of all samples",
        "no bins have to be guessed",
    ),
    Difference(
        "quantize",
        "`mode` with eight-bit floats",
        "refused: take `bitwright.quantize` with the target `nvidia-tensorrt:fp8`",
        "ONNX Runtime's CPU has no products of them",
    ),
    Difference(
        "quantize",
        "`model_type` TRANSFORMER leaves sums and element-wise products float",
        "they stay float where their neighbours do",
        "a sum between two integer products costs two conversions in float",
    ),
)

COMPRESSION = (
    SENSITIVITY,
    PLACES,
    DATALESS,
    SEARCHES,
    Difference(
        "compress_weights",
        "blocked DequantizeLinear from opset 21 on, MatMulNBits below",
        "MatMulNBits",
        "ONNX Runtime computes it without unpacking the whole weight",
    ),
    Difference(
        "compress_weights",
        "weights of convolutions in eight bits, too",
        "products and tables of lookups",
        "no n-bit kernel computes a convolution",
    ),
    Difference(
        "compress_weights",
        "groups that do not divide the rows of a weight are an error, or "
        "`group_size_fallback_mode` says what becomes of it",
        "the last group of a row is shorter",
        "the kernel takes it",
    ),
    Difference(
        "compress_weights",
        "`gptq` is refused for ONNX models",
        "GPTQ",
        "it needs a dataset alone",
    ),
    Difference(
        "compress_weights",
        "`backup_mode` without bits, or with eight-bit floats",
        "refused: name layers in `ignored_scope`",
        "the head and tables have eight-bit integers, symmetric where the others are",
    ),
)
