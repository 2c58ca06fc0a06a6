"""Differences from `vai_q_onnx`, one row each, as the guide shows them."""

from __future__ import annotations

from bitwright.compat.differences import Difference

SIMPLIFY_MODEL = Difference(
    "quantize_static",
    "`SimplifyModel=False` switches off one of two passes that clean up",
    "has no effect",
    "optimize_model=False switches off all that cleans up",
    warns=True,
)

STATIC = (
    SIMPLIFY_MODEL,
    Difference(
        "quantize_static",
        "a library in C++ is compiled at the first import, or the import fails",
        "the vendor's operators are function bodies of standard ones: any ONNX Runtime runs them",
        "no compiler is needed, and no platform is left out",
    ),
    Difference(
        "quantize_static",
        "a model in which nothing is quantized is written as it was, in silence",
        "is written as it was, with a warning that says why",
        "every node was left out, or has no rule",
    ),
    Difference(
        "quantize_static",
        "unknown options are ignored in silence",
        "ignored with a warning that has a suggestion",
        "a misspelt option would do nothing, and nobody would know",
    ),
    Difference(
        "quantize_static",
        "unknown node names are ignored in silence",
        "ignored with a warning that has a suggestion; a part of `subgraphs_to_exclude` without "
        "its ends is an error",
        "a part without ends is no part",
    ),
    Difference(
        "quantize_static",
        "a limit of the NPU moves a scale, and the stored integers stay",
        "limits act on the plan; integers are made last, from float",
        "integers of another scale are other weights",
    ),
    Difference(
        "PowerOfTwoMethod",
        "`NonOverflow` clips by up to a factor of 1.41",
        "it clips nothing",
        "its name says so",
    ),
    Difference(
        "quantize_static",
        "NPU mode with a float method is not NPU mode, without a word",
        "refused",
        "the model would not run on the NPU",
    ),
    Difference(
        "quantize_static",
        "`MinMSEMode`, `IPULimitationCheck`, `UseUnsignedReLU` and `UseQDQVitisCustomOps` do "
        "nothing",
        "they work",
        "an option that is documented is asked for",
    ),
    Difference(
        "quantize_static",
        "`CalibMovingAverage` is a plain mean",
        "an exponential average with the given constant",
        "the constant would have no effect",
    ),
    Difference(
        "quantize_static",
        "`input_nodes` and `output_nodes` cut by the order of nodes in the file",
        "by what lies behind and before them",
        "any other order of the same graph is the same model",
    ),
    Difference(
        "quantize_static",
        "wrong data: an error in the log, and None",
        "an error; errors are `ValueError`s too",
        "None fails later, and elsewhere",
    ),
    Difference(
        "quantize_static",
        "each layer that learns runs both models from the start again",
        "both run once, piece by piece",
        "fine-tuning takes minutes, not hours",
    ),
    Difference(
        "quantize_static",
        "a Conv without `group` is not equalized; a non-zero Pad is, and changes the result",
        "pairs are equalized where that is exact, and only there",
        "equalization must not change the model",
    ),
    Difference(
        "quantize_static",
        "`convert_fp16_to_fp32` does nothing with a recent numpy",
        "it works",
        "it is what was asked for",
    ),
    Difference(
        "quantize_static",
        "BF16 pairs do not saturate: 3.4e38 becomes infinite",
        "they saturate; Casts (`BF16QDQToCast`) do not",
        "one infinite value makes NaN of the rest",
    ),
    Difference(
        "quantize_static",
        "NPU mode takes open shapes and skips passes in silence",
        "noted with a warning; `verify` fails; `FixShapes` fixes them",
        "the NPU's compiler takes fixed shapes only",
    ),
    Difference(
        "quantize_static",
        "the nodes of a written model are not in order where operators were simulated",
        "every model passes `onnx.checker`",
        "other tools refuse such files",
    ),
)
