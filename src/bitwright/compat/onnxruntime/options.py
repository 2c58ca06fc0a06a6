"""`extra_options` of ONNX Runtime's quantization tool, translated into a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitwright.compat.onnxruntime.enums import QuantType, as_member
from bitwright.compat.onnxruntime.overrides import read_channel_axes, read_overrides
from bitwright.compat.options import (
    RecipeParts,
    Row,
    checked,
    choice,
    negated,
    number,
    read_op_types,
    to,
    translate,
    when_on,
)
from bitwright.numerics.types import QType

__all__ = ["OPTIONS", "translate_options"]


def translate_options(options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what the options ask for; an unknown one is an error with a suggestion.

    >>> translate_options({"ActivationSymmetric": True}).recipe
    {'activation_symmetric': True}
    >>> translate_options({"BlokSize": 32})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown option 'BlokSize'. Did you mean 'BlockSize'?
    """
    parts = RecipeParts()
    for option, changes in translate(options, OPTIONS):
        parts.apply(option, changes)
    return parts


def _read_type(given: Any, what: str) -> QType:
    return as_member(QuantType, given, what).qtype


# NNAPI's sigmoid gives multiples of 1/256 from 0 to 255/256.
_NNAPI_SIGMOID = {"Sigmoid": (0.0, 255 / 256)}

# Values of onnx.TensorProto.
_FLOAT_TYPES = {1: "float32", 10: "float16"}

OPTIONS: dict[str, Row] = {
    "ActivationSymmetric": to("recipe.activation_symmetric"),
    "ActivationRestrictedAsymmetric": to("recipe.restricted_asymmetric"),
    "WeightSymmetric": to("recipe.weight_symmetric"),
    "MinimumRealRange": to("recipe.min_real_range", number(float, 0.0)),
    "EnableSubgraph": to("select.subgraphs"),
    "ForceQuantizeNoInputCheck": to("place.force_shared"),
    "MatMulConstBOnly": to("select.constant_weights_only"),
    "AddQDQPairToWeight": to("place.weight_pairs"),
    "DedicatedQDQPair": to("place.dedicated_pairs"),
    "QDQKeepRemovableActivations": to("place.keep_activations"),
    "QDQDisableWeightAdjustForInt32Bias": to("place.adjust_for_bias", negated),
    "UseQDQContribOps": to("place.contrib_ops"),
    "QuantizeBias": to("recipe.quantize_bias"),
    "OpTypesToExcludeOutputQuantization": to("place.unquantized_outputs", read_op_types),
    "QDQOpTypePerChannelSupportToAxis": to("place.channel_axes", read_channel_axes),
    "BlockSize": to("recipe.block_size", number(int, 0)),
    "TensorQuantOverrides": to(
        "recipe.overrides",
        read_overrides(_read_type),
    ),
    "CalibTensorRangeSymmetric": to("calibration.symmetric"),
    "CalibMovingAverage": to("calibration.moving_average"),
    "CalibMovingAverageConstant": to("calibration.constant", number(float, 0.0)),
    "CalibPercentile": to("calibration.percentile", number(float, 0.0)),
    # It bounds memory; one streaming pass is within any bound.
    "CalibMaxIntermediateOutputs": checked(number(int, 1)),
    "CalibStridedMinMax": to("calibration.stride", number(int, 1)),
    "SmoothQuant": to("smooth.asked"),
    "SmoothQuantAlpha": to("smooth.alpha", number(float, 0.0)),
    "SmoothQuantFolding": to("smooth.folding"),
    "DefaultTensorType": to(
        "recipe.assumed_type",
        choice(_FLOAT_TYPES, ": TensorProto.FLOAT or FLOAT16, others are not quantized"),
    ),
    "extra.Sigmoid.nnapi": when_on({"recipe.output_ranges": _NNAPI_SIGMOID}),
}
"""The name of an option -> its row; a new option is one more."""
