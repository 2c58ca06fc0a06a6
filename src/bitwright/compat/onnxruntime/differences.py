"""Differences from `onnxruntime.quantization`, one row each, as the guides show them."""

from __future__ import annotations

from bitwright.compat.differences import Difference

# What callers are warned of, in these words -------------------------------------------------------

MAY_NOT_RUN = Difference(
    "quantize_static",
    "float8, and a `BlockSize` for a MatMul between 8-bit pairs, are written without a word, and "
    "ONNX Runtime refuses them at its default optimization level",
    "is written",
    "ONNX Runtime's CPU provider may not run it at its default optimization level; switch "
    "optimizations off, or use a provider that has these types",
    warns=True,
)
NOTHING_QUANTIZED = Difference(
    "quantize_static",
    "a model in which nothing is quantized is written as it was, in silence",
    "is written as it was",
    "every node was left out, or has no rule",
    warns=True,
)
FLOAT8_CACHE = Difference(
    "quantize_static",
    "`calibration_cache_path` with float8 keeps deviations",
    "is ignored",
    "float8 scales are deviations, which a cache of ranges does not have",
    warns=True,
)
CONVERT_WITHOUT_PAIRS = Difference(
    "quantize_static",
    "QOperator: `convert` of an override has no effect",
    "is ignored",
    "QOperator has no Q/DQ pairs",
    warns=True,
)
OPTIMIZE_MODEL = Difference(
    "quantize_static",
    "`optimize_model` of older releases ran the runtime's optimizations first, today's refuse it",
    "is ignored",
    "models are quantized as they are; run quant_pre_process before",
    warns=True,
)
ACTIVATION_TYPE = Difference(
    "quantize_dynamic",
    "`activation_type` of older releases said how activations are measured, today's refuse it",
    "is ignored",
    "activations are uint8, measured at every run",
    warns=True,
)
TRAINED_OPTIONS = Difference(
    "quantize_qat",
    "all `extra_options` were read",
    "is ignored",
    "it has no meaning for a model whose scales were trained",
    warns=True,
)

# Tables -------------------------------------------------------------------------------------------

STATIC = (
    MAY_NOT_RUN,
    NOTHING_QUANTIZED,
    FLOAT8_CACHE,
    CONVERT_WITHOUT_PAIRS,
    OPTIMIZE_MODEL,
    Difference(
        "quantize_static",
        "unknown options and keys of overrides, names of nodes and op types that nothing has, and "
        "options of another method or format are ignored in silence",
        "ignored with a warning that has a suggestion",
        "a misspelt option would do nothing, and nobody would know",
    ),
    Difference(
        "quantize_static",
        "histogram methods keep all activations of all samples in memory",
        "one pass in constant memory, for every method",
        "calibration must not need hundreds of GB",
    ),
    Difference(
        "quantize_static",
        "a Relu or Clip goes whenever a quantizer follows, also where that covers a wider range "
        "(`CalibTensorRangeSymmetric`, float8, overrides)",
        "it goes unless the quantizer lets more than one step pass, or the bounds are known at run "
        "time only",
        "negative values would pass where the model has a Relu",
    ),
    Difference(
        "quantize_static",
        "Gemm's `alpha` and `beta` are lost with a quantized bias",
        "they are folded into weight and bias, or the node stays float",
        "the bias would be beta times too small or too large",
    ),
    Difference(
        "quantize_static",
        "QOperator: a Relu or Clip is dropped also where others read its input, or where that only "
        "moves values",
        "it becomes an integer Clip or LeakyRelu",
        "the other readers would read clipped values",
    ),
    Difference(
        "quantize_static",
        "QOperator: Gather, Slice and TopK, and with `ForceQuantizeNoInputCheck` Transpose, "
        "Reshape, Flatten, Squeeze, Unsqueeze and MaxPool, read dequantized values",
        "they move integers",
        "the same numbers, in a quarter of the memory",
    ),
    Difference(
        "quantize_static",
        "QOperator: results of a Split are called `yquantized`; a Relu that goes leaves the names "
        "of its input (`c_scale`)",
        "`y_quantized`; the names of its output (`y_scale`)",
        "one rule for all names, and the range is the Relu's",
    ),
    Difference(
        "quantize_static",
        "QOperator: a bias that two nodes read gets the first one's scale",
        "each gets its own copy",
        "the second node would add another bias than the model's",
    ),
    Difference(
        "quantize_static",
        "QOperator: a Softmax below opset 13 that names no axis is computed over the last one",
        "over all from the second on",
        "that was its default",
    ),
    Difference(
        "quantize_static",
        "QOperator: per-channel uint8 weights of a Conv are stored as int8",
        "they are stored as asked",
        "`weight_type` says what is stored",
    ),
    Difference(
        "quantize_static",
        "an excluded node still reads dequantized inputs, and the runtime stores its float weights "
        "in 8 bits when it opens the model",
        "it reads and writes float, and "
        "[its weights stay float](recipes.md#float-nodes-that-stay-float)",
        "a node is excluded because its error matters",
    ),
    Difference(
        "quantize_static",
        "attention masks are quantized together with the scores",
        "masks and other huge constants stay out of the activations' range",
        "a mask of -1e9 leaves the scores one step or two",
    ),
    Difference(
        "quantize_static",
        "NaN and Inf in the data: ignored, or a scale of inf",
        "an error that names the input and the sample",
        "ranges of broken data are no ranges",
    ),
    Difference(
        "quantize_static",
        "the file may not load in the runtime",
        "it has been loaded and run at the default optimization level before it is saved",
        "a fault is found here, not where the model is used",
    ),
    Difference(
        "quantize_static",
        "weights in Constant nodes are quantized as activations, at every run, and stay float in "
        "the file",
        "they are weights: integers in the file, symmetric by default (`WeightSymmetric=False`, "
        "`QuantizeBias=False` give the other tool's numbers)",
        "the file is smaller and the model faster",
    ),
    Difference(
        "quantize_static",
        "quantizing twice adds more pairs",
        "refused",
        "each round of rounding loses accuracy, and scales of a quantized model are not the float "
        "model's",
    ),
    Difference(
        "quantize_static",
        "`BlockSize`: weights that are no matrices are a `NotImplementedError`",
        "other weights have no blocks",
        "the rest of the model can be quantized",
    ),
    Difference(
        "quantize_static",
        "float8 in QOperator: fails on Conv, and for MatMul names an operator "
        "(`com.microsoft.QLinearMatMul`) that no ONNX Runtime has",
        "refused",
        "the model would load nowhere; QDQ has float8, and `bitwright.quantize` with the format "
        "`extended` has float8 that runs at every level",
    ),
    Difference(
        "quantize_static",
        "`per_channel` below opset 13 writes a model that does not load",
        "the opset becomes 13; without channels it stays as there, and below 10 becomes 11",
        "opset 13 has per-channel scales",
    ),
    Difference(
        "quantize_static",
        "overrides: only the first non-empty one is checked",
        "all are, in the same words",
        "a wrong entry would have no effect",
    ),
    Difference(
        "quantize_static",
        "`convert` for nodes that do not read the tensor leaves nodes that nothing reads",
        "a warning, and no such nodes",
        "they compute for nothing",
    ),
    Difference(
        "quantize_static",
        "float16 models: below opset 21, around a Softmax and around a Concat of uint8 the result "
        "does not load, nor on machines with float16 arithmetic around a Conv, an Add, a Mul or an "
        "average; 16-bit types lose most of their digits in float16 scales",
        "pairs with float16 scales where that runs on this machine; else computed in float32 "
        "between a Cast at each input and output (`x` is `x_float` inside, and overrides of `x` "
        "count for it)",
        "the model runs, and its numbers are right",
    ),
    Difference(
        "quantize_static",
        "float16 models: biases are int32 with a float16 scale",
        "they stay float16",
        "the product of two scales is below what float16 resolves",
    ),
)

DYNAMIC = (
    ACTIVATION_TYPE,
    Difference(
        "quantize_dynamic",
        "a Gemm with `alpha`, `beta` or `transA` stays float",
        "every Gemm of a constant is quantized",
        "constants can be scaled before they are rounded",
    ),
    Difference(
        "quantize_dynamic",
        "two Gemm nodes that share a transposed weight: wrong numbers, or a model that does not "
        "load",
        "each is right, and the weight is stored once",
        "the weight is transposed twice there",
    ),
    Difference(
        "quantize_dynamic",
        "`per_channel` is ignored for Conv",
        "one scale for each output channel",
        "it is what was asked for",
    ),
    Difference(
        "quantize_dynamic",
        "the weights of an LSTM are int8 whatever `weight_type` says",
        "the asked type",
        "it is what was asked for",
    ),
    Difference(
        "quantize_dynamic",
        "int8 weights of a Conv are stored as int8",
        "as uint8, 128 higher, with a zero point that is as much higher",
        "the same numbers, and older runtimes have no ConvInteger for int8 weights",
    ),
    Difference(
        "quantize_dynamic",
        "a MatMul whose weight is in a Constant node stays float",
        "its weight is stored as integers",
        "a constant is a constant, wherever an exporter puts it",
    ),
    Difference(
        "quantize_dynamic",
        "a weight that float nodes read too is stored as integers only, and they read it rounded",
        "the float weight is kept for them",
        "nodes that stay float compute what they did",
    ),
    Difference(
        "quantize_dynamic",
        "a float16 model becomes an invalid one",
        "it computes in float32 behind float16 inputs and outputs",
        "DynamicQuantizeLinear has no float16",
    ),
    Difference(
        "quantize_dynamic",
        "16-bit and float8 weights: a model that does not load; 4-bit ones: a `RuntimeError`",
        "refused before any work",
        "the integer operators of ONNX Runtime take 8 bits only",
    ),
    Difference(
        "quantize_dynamic",
        "opset 10: nine nodes measure each activation",
        "the opset becomes 11, whose DynamicQuantizeLinear does it in one",
        "the runtime fuses one node, not nine",
    ),
    Difference(
        "quantize_dynamic",
        "`MatMulConstBOnly` is written into the caller's `extra_options`",
        "they are not changed",
        "the next call may get the same dict",
    ),
)

TRAINED = (
    TRAINED_OPTIONS,
    Difference(
        "quantize_qat",
        "`reduce_range` acted on the model's float part",
        "an error",
        "it changes scales, and trained ones are kept",
    ),
)

PREPROCESS = (
    Difference(
        "quant_pre_process",
        "symbolic shape inference that gives up ends the run, and leaves a file in the working "
        "directory",
        "a warning says so, what was found is kept, and the other steps run",
        "most models need no complete shapes",
    ),
    Difference(
        "quant_pre_process",
        "an optimization that fails is only logged",
        "a warning names the step and the reason",
        "logs are seldom read",
    ),
    Difference(
        "quant_pre_process",
        "a model over 2 GB takes 7 GB of memory and more",
        "Bitwright's own passes optimize it: names stay, a MatMul and its Add stay two nodes",
        "weights are never all in memory",
    ),
    Difference(
        "quant_pre_process",
        "a float16 model becomes one of float32 between Casts",
        "Bitwright's own passes optimize it, and it stays float16",
        "the Casts are for one processor",
    ),
    Difference(
        "preprocess.parse_arguments",
        "`--skip_optimization False` skips it",
        "it does not",
        "False is no",
    ),
    Difference(
        "quant_pre_process",
        "unknown keywords are ignored in silence",
        "ignored with a warning that has a suggestion",
        "a misspelt argument would do nothing, and nobody would know",
    ),
)

CALIBRATION = (
    Difference(
        "create_calibrator",
        "a calibrator writes `augmented_model.onnx`, and keeps what it collects in memory",
        "nothing is written unless `augment_graph` is called; activations are never kept: `MinMax` "
        "takes one pass, the histogram methods two (of a reader that can be read once, they keep "
        "the inputs)",
        "inputs are small, activations are not",
    ),
    Difference(
        "calibrate.HistogramCollector",
        "a histogram of a later call with larger values grows without bound",
        "neighbouring bins are joined",
        "one outlier would take all memory",
    ),
    Difference(
        "calibrate.EntropyCalibrater",
        "with more than the default 128 bins the search takes minutes",
        "the same answer, some ten times faster",
        "sums are updated, not computed anew",
    ),
    Difference(
        "calibrate.DistributionCalibrater",
        "refuses its own default of 128 bins",
        "the default is 2048 bins",
        "a default must work",
    ),
    Difference(
        "create_calibrator",
        "NaN makes a sample count for nothing, or fails; Inf stays in the range",
        "both are left out of the range",
        "a range of Inf has no steps",
    ),
    Difference(
        "quant_utils.write_calibration_table",
        "the table for TensorRT has the larger of the two ends",
        "the larger magnitude",
        "a range from -5 to 1 needs 5",
    ),
    Difference(
        "qdq_loss_debug.compute_activation_error",
        "fails without float activations",
        "there is then no `xmodel_err`",
        "the other error can be computed",
    ),
    Difference(
        "matmul_bnb4_quantizer.MatMulBnb4Quantizer",
        "leaves weights in Constant nodes float, and writes zeros for float64 ones",
        "Constant nodes are taken, float64 nodes stay float",
        "zeros are no weights",
    ),
    Difference(
        "matmul_bnb4_quantizer.parse_args",
        "refuses every `--quant_type` and `--block_size` that is given",
        "takes them",
        "texts are read as numbers",
    ),
)

PROVIDERS = (
    Difference(
        "fusions.FusionLayerNormalization",
        "a fusion removes a result that is an output of the model, and takes a mean over any axis "
        "for a layer norm",
        "both stay as they are",
        "the model would compute something else",
    ),
    Difference(
        "execution_providers.qnn.qnn_preprocess_model",
        "fails on a model with metadata",
        "the metadata stay",
        "most exporters write some",
    ),
    Difference(
        "static_quantize_runner.main",
        "fails on a path without a folder and without data, and passes `--op_per_channel_axis` on "
        "as text",
        "takes the path, says what is missing, and reads the number",
        "its flags are there to be used",
    ),
    Difference(
        "registry.CreateQDQQuantizer",
        "`operators.*` and the registries are an extension point",
        "the names are there, and the registries list op types; making a quantizer of one "
        "operator, or changing a registry, is an error that says what to use",
        "a whole model is quantized by a plan, not node by node",
    ),
    Difference(
        "CudaQuantizer",
        "prepacks weights for CUDA's kernels",
        "can be imported; its use is an error that says what to do instead",
        "the layout is private to one runtime's kernels",
    ),
    Difference(
        "matmul_nbits_quantizer.DefaultWeightOnlyQuantizer",
        "quantizes one node",
        "can be imported, as its siblings can; its use is an error that says what to do instead",
        "a whole model is quantized by a plan, not node by node",
    ),
    Difference(
        "QDQQuantizer",
        "has methods that mark one tensor or change one node",
        "they are errors that say what to do instead; what it knows of its model can be asked",
        "a whole model is quantized by a plan, not node by node",
    ),
)

NBITS = (
    Difference(
        "matmul_nbits_quantizer.MatMulNBitsQuantizer",
        "`nodes_to_include` restricts nothing",
        "only these nodes",
        "it is what was asked for",
    ),
    Difference(
        "matmul_nbits_quantizer.MatMulNBitsQuantizer",
        "Gemm stays float although it is asked for",
        "quantized, with its bias",
        "a Gemm is a MatMul and an Add",
    ),
    Difference(
        "matmul_nbits_quantizer.MatMulNBitsQuantizer",
        "QDQ with 8 bits stays float; with 2 bits an assertion",
        "both are written (2-bit types need opset 25, else they take 4)",
        "standard pairs have these types",
    ),
    Difference(
        "matmul_nbits_quantizer.MatMulNBitsQuantizer",
        "a weight `w` with leading ones is stored as `w_Q4`, and a chain of nine nodes gives the "
        "result its ones back where the rank of the activation is unknown",
        "as `w_matrix_Q4`, and one Unsqueeze does where the rank is known",
        "others may read `w` as it was, and one node is faster than nine",
    ),
    Difference(
        "matmul_nbits_quantizer.MatMulNBitsQuantizer",
        "tables of a Gather are INT4 or UINT4 tensors",
        "packed UINT8 ones",
        "the runtime takes both, and tensors of 4 bits need IR version 10",
    ),
    Difference(
        "matmul_nbits_quantizer.RTNWeightOnlyQuantConfig",
        "RTN, k_quant and GPTQ have 4 bits whatever is asked for, and fail on odd numbers of "
        "blocks",
        "the asked bits; they do not",
        "it is what was asked for",
    ),
    Difference(
        "matmul_nbits_quantizer.GPTQWeightOnlyQuantConfig",
        "gives the codes of RTN",
        "GPTQ",
        "the wrong triangle of a matrix is read there",
    ),
    Difference(
        "matmul_nbits_quantizer.HQQWeightOnlyQuantConfig",
        "writes float zero points, which are slow on CPUs, and needs torch",
        "integers, with the scale fitted to them; no torch",
        "integer zero points run in every kernel",
    ),
    Difference(
        "matmul_nbits_quantizer.KQuantWeightOnlyQuantConfig",
        "fits a minimum and rounds it afterwards, which loses more than it gains",
        "ranges are searched with integer zero points",
        "the error that counts is that of what is stored",
    ),
    Difference(
        "matmul_nbits_quantizer.DefaultWeightOnlyQuantConfig",
        "`channel_wised_quantize` is for QDQ only",
        "for both formats",
        "MatMulNBits takes whole columns, too",
    ),
    Difference(
        "matmul_nbits_quantizer.parse_args",
        "`--block_size` and `--symmetric` count for some methods only",
        "for all",
        "a flag is not ignored",
    ),
)
