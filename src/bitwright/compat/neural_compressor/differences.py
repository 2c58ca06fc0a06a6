"""Differences from Neural Compressor's weight-only module, one row each, as its guide shows."""

from __future__ import annotations

from bitwright.compat.differences import Difference

NO_PROVIDER = Difference(
    "weight_only.prepare_inputs",
    "providers that are not installed: an error of the runtime, or its own fallback",
    "is left out",
    "this ONNX Runtime does not have it",
    warns=True,
)
CALIBRATION_SAMPLES = Difference(
    "weight_only.gptq_quantize",
    "`calib_iteration` of `weight_config` has no effect",
    "is ignored",
    "n_samples says how many are read",
    warns=True,
)
IGNORED = Difference(
    "tuning.fit",
    "devices, backends, samplers and other options choose another way to search or run",
    "is ignored",
    "models are tuned for ONNX Runtime's CPU kernels",
    warns=True,
)
MISSED = Difference(
    "tuning.fit",
    "None comes back where no model is within the loss, and nothing says how close it was",
    "is not returned",
    "it is not within the tolerable loss; bitwright.tune gives it all the same",
    warns=True,
)

SCHEMES = Difference(
    "tuning.PostTrainingQuantConfig",
    "`scheme` of static models has no effect: weights are symmetric, activations asymmetric",
    "is ignored",
    "it is there, too, for ONNX models",
    warns=True,
)
HALVES = Difference(
    "tuning.PostTrainingQuantConfig",
    "operators in bf16 or fp16 where the machine computes in it",
    "stands for fp32",
    "few CPU kernels compute in halves, and a cast is no quantization",
    warns=True,
)
UNMATCHED = Difference(
    "tuning.PostTrainingQuantConfig",
    "patterns of `op_type_dict` and `op_name_dict` that fit nothing are ignored",
    "is ignored",
    "nothing in the model is called so",
    warns=True,
)
WHOLE_MODEL = Difference(
    "tuning.PostTrainingQuantConfig",
    "`algorithm` of activations is one of each operator",
    "is that of all activations",
    "a tensor between two operators has one range",
    warns=True,
)
ALPHAS = Difference(
    "tuning.PostTrainingQuantConfig",
    "of several alphas of SmoothQuant each is tried for the whole model",
    "is taken as 'auto'",
    "each layer gets the alpha with the least error",
    warns=True,
)
TUNING = (
    IGNORED,
    MISSED,
    SCHEMES,
    HALVES,
    UNMATCHED,
    WHOLE_MODEL,
    ALPHAS,
    Difference(
        "tuning.fit",
        "strategies of up to 100 trials, each calibrated and quantized anew; it stops at the first "
        "model within the loss",
        "one search, `bitwright.tune`, whatever `strategy`, `quant_level` and `max_trials` say: "
        "two dozen evaluations at most",
        "units are measured once, and the fastest mixture within the loss is what is looked for",
    ),
    Difference(
        "tuning.fit",
        "`eval_metric` has 15 metrics for ONNX models, and several at once",
        "topk, Accuracy, MSE, MAE, RMSE, or an object with reset, update and result; others are "
        "refused",
        "`eval_func` has any",
    ),
    Difference(
        "tuning.fit",
        "`reduce_range` is on by default on CPUs without VNNI",
        "it is off until it is asked for",
        "`bitwright verify` finds sums that can be too large, which few models have",
    ),
    Difference(
        "tuning.fit",
        "the default of `quant_format` is QOperator",
        "QDQ",
        "the runtime makes the same integer kernels of it",
    ),
    Difference(
        "tuning.autotune",
        "`config_set` holds configurations of algorithms, and where none is within the loss the "
        "process ends",
        "it also holds recipes, or their names, for `bitwright.tune`, which come behind them; "
        "None, with a warning, where none is within the loss",
        "a recipe says more, and a library ends no process",
    ),
    Difference(
        "tuning.fit",
        "the drop is told by the function that the search was steered by",
        "it is here, too: the function has its samples inside; `bitwright.tune` with samples "
        "reports on those that the search never saw",
        "`eval_func` takes a model alone",
    ),
)

WEIGHT_ONLY = (
    NO_PROVIDER,
    CALIBRATION_SAMPLES,
    Difference(
        "weight_only.gptq_quantize",
        "reads the wrong triangle of its matrix: the codes are those of rounding to nearest",
        "GPTQ, each layer for the inputs that the rounded ones before it give",
        "it is what was asked for",
    ),
    Difference(
        "weight_only.awq_quantize",
        "the scales that are tried all give the same loss, and the clip search tries one ratio",
        "both searches, in the groups in which weights are stored; not scaling is among the "
        "choices",
        "a search must compare",
    ),
    Difference(
        "weight_only.awq_quantize",
        "does nothing without `enable_mse_search`",
        "each half works by itself",
        "there are two switches",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "an asymmetric group of one sign is clipped to the width of its range",
        "its range holds zero",
        "weights from 5 to 6 would become 0 to 1",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "an odd number of groups: a model that does not load",
        "zero points are packed for each output",
        "the kernel reads them so",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "the settings of a node stay for the nodes after it, and in the default `{}` for the next "
        "call",
        "settings are for the node they name",
        "calls do not depend on each other",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "unknown node names are ignored",
        "an error with a suggestion",
        "a misspelt name leaves a node as it was",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "`group_size=-1` is the size of the first weight",
        "of each its own",
        "a whole column is meant",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "2, 3, 5 to 8 bits stay float in the file",
        "they are stored small",
        "the file is what low-bit weights are for",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "symmetric scales are 2 x largest / 15",
        "in models, largest / -8 with its sign; `quant_tensor` has the documented values",
        "it has a fifth less error",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "Gemm, weights behind a Transpose, in Constant nodes, with leading axes of one, in If and "
        "Loop: left out, or an error",
        "quantized",
        "they are weights of products, too",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "a weight that two nodes read stays in the file as floats too",
        "it is stored once",
        "nothing reads the floats",
    ),
    Difference(
        "weight_only.awq_quantize",
        "fails on products of inputs, samples of several lengths, and rows that do not fill a "
        "group",
        "none of these matters",
        "language models have them",
    ),
    Difference(
        "weight_only.gptq_quantize",
        "no samples: all weights become zero",
        "an error",
        "zeros are no model",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "a large model leaves a copy on disk at each call",
        "nothing is left behind",
        "disks fill up",
    ),
    Difference(
        "weight_only.gptq",
        "overwrites H and zeroes rows of W",
        "arguments are not changed",
        "they are the caller's",
    ),
    Difference(
        "weight_only.apply_awq_scale",
        "changes the model and `weight_config`",
        "arguments are not changed",
        "they are the caller's",
    ),
    Difference(
        "weight_only.rtn_quantize",
        '`algorithm` "TEQ" is in the configurations, and no function for ONNX models has it',
        "refused",
        "nothing would be done",
    ),
    Difference(
        "weight_only.rtn_quantize",
        "keys of `weight_config` that nothing reads (`dtype`, misspelt ones) are ignored",
        "ignored with a warning",
        "a misspelt key would do nothing, and nobody would know",
    ),
)
