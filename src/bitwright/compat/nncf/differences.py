"""Differences from NNCF's quantization with accuracy control, one row each, as its guide shows."""

from __future__ import annotations

from bitwright.compat.differences import Difference

DEVICE = Difference(
    "quantize_with_accuracy_control",
    "`target_device` chooses the operators that a device quantizes",
    "has no effect",
    "the model is made for ONNX Runtime, whose kernels are what is measured",
    warns=True,
)
MISSED = Difference(
    "quantize_with_accuracy_control",
    "a drop that cannot be kept to: the last model, and a line in the log",
    "misses max_drop",
    "no mixture of types that was tried keeps the metric; this is the closest model",
    warns=True,
)

ACCURACY_CONTROL = (
    DEVICE,
    MISSED,
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
        "quantize_with_accuracy_control",
        "ranges, and further steps, as `quantize` has them",
        "ranges by the mean of extremes and bias correction as asked for, then the steps of "
        "`effort` that lower the error",
        "what costs no speed comes before what does",
    ),
    Difference(
        "quantize_with_accuracy_control",
        "`advanced_quantization_parameters`, `advanced_accuracy_restorer_parameters`",
        "refused: take `bitwright.tune` with a recipe",
        "they name steps of another search",
    ),
)
