"""`extra_options` of ONNX Runtime's quantization tool, translated into a recipe.

Among them `TensorQuantOverrides`, and the channel axes of op types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bitwright.compat.onnxruntime.enums import as_quant_type
from bitwright.compat.options import (
    Read,
    RecipeParts,
    Row,
    checked,
    choice,
    ignore_unknown,
    negated,
    number,
    read_mapping,
    read_names,
    read_op_types,
    to,
    translate,
    when_on,
)
from bitwright.errors import RecipeError
from bitwright.numerics.types import QType
from bitwright.recipe import Override

_CONVERT_KEYS = ("quant_type", "scale", "zero_point", "symmetric", "rmin", "rmax", "recv_nodes")
_KEYS = (*_CONVERT_KEYS[:-1], "axis", "reduce_range", "block_size", "convert")
_SHARED_KEYS = ("quant_type", "axis", "symmetric", "reduce_range", "block_size")
_NUMBER_KEYS = {"scale": float, "zero_point": int, "rmin": float, "rmax": float}

TypeReader = Callable[[Any, str], QType]


def translate_options(options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what the options ask for; those without an effect are ignored with a warning."""
    parts = RecipeParts()
    for option, changes in translate(options, OPTIONS, ignore=True):
        parts.apply(option, changes)
    if "asked" not in parts.smooth:
        for name in [*parts.smooth]:
            parts.drop(f"smooth.{name}", "it goes with SmoothQuant=True")
    # There, names that nothing has are no error.
    parts.select["unknown_names"] = "warn"
    return parts


def read_channel_axes(what: str, given: Any) -> dict[str, int]:
    """Return the channel axis of each op type that is named."""
    axes: dict[str, Any] = {}
    for op_type, entry in read_mapping(what, given, "op types").items():
        axes[op_type] = entry.get("axis") if isinstance(entry, Mapping) else entry
        if not isinstance(axes[op_type], int):
            raise RecipeError(f"{what} maps {op_type!r} to an axis, not {entry!r}.")
    return axes


def read_overrides(read_type: TypeReader) -> Read:
    """Return a reader of `TensorQuantOverrides`, with number types as a package has them."""

    def read(what: str, given: Any) -> dict[str, Override]:
        return {
            tensor: _override(f"TensorQuantOverrides[{tensor!r}]", entries, read_type)
            for tensor, entries in read_mapping(what, given, "tensor names").items()
        }

    return read


def _override(where: str, entries: Any, read_type: TypeReader) -> Override:
    """Turn one dict, or one for each channel, into an override; every entry is checked."""
    is_list = isinstance(entries, Sequence) and not isinstance(entries, str)
    if not is_list or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise RecipeError(f"{where} is a list of dicts, not {entries!r}.")
    fields = _fields(where, entries, _KEYS, read_type)
    converts = [entry["convert"] for entry in entries if entry.get("convert") is not None]
    if len(entries) > 1 and converts:
        raise RecipeError(f"{where}: 'convert' is for whole activations, not for channels.")
    # There, a weight that is overridden without an axis has one scale.
    fields["per_tensor"] = "axis" not in fields and "block_size" not in fields
    if converts:
        where_converted = f"{where}['convert']"
        entry = read_mapping(where_converted, converts[0], "settings")
        receivers = entry.get("recv_nodes")
        if receivers is not None:
            receivers = tuple(sorted(read_names(f"{where_converted}['recv_nodes']", receivers)))
        converted = _fields(where_converted, [entry], _CONVERT_KEYS, read_type)
        fields["convert"], fields["convert_for"] = _build(where_converted, converted), receivers
    return _build(where, fields)


def _build(where: str, fields: Mapping[str, Any]) -> Override:
    try:
        return Override(**fields)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def _fields(
    where: str, entries: Sequence[Mapping[str, Any]], known: Sequence[str], read_type: TypeReader
) -> dict[str, Any]:
    entries = [ignore_unknown(entry, known, f" in {where}") for entry in entries]
    fields: dict[str, Any] = {}
    for name in _SHARED_KEYS:
        values = {str(entry[name]): entry[name] for entry in entries if name in entry}
        if len(values) > 1:
            raise RecipeError(f"{where}: all channels must agree on {name!r}.")
        if values:
            (fields[name],) = values.values()
    if "quant_type" in fields:
        fields["qtype"] = read_type(fields.pop("quant_type"), f"quant_type in {where}")
    if len(entries) > 1 and "axis" not in fields:
        raise RecipeError(f"{where} has an entry for each channel and needs 'axis' in the first.")
    for name, kind in _NUMBER_KEYS.items():
        given = [entry[name] for entry in entries if name in entry]
        if not given:
            continue
        if len(given) != len(entries):
            raise RecipeError(f"{where}: {name!r} must be in every entry or in none.")
        try:
            flat = [kind(item) for entry in given for item in np.asarray(entry).reshape(-1)]
        except (TypeError, ValueError) as error:
            raise RecipeError(f"{where}: {name!r} is a number or an array of them.") from error
        fields[name] = tuple(flat) if "axis" in fields and len(flat) > 1 else flat[0]
    return fields


def _read_type(given: Any, what: str) -> QType:
    return as_quant_type(given, what).qtype


def _read_alpha(what: str, given: Any) -> Any:
    return given if given == "auto" else number(float, 0.0)(what, given)


# NNAPI's sigmoid gives multiples of 1/256 from 0 to 255/256.
_NNAPI_SIGMOID = {"Sigmoid": (0.0, 255 / 256)}

# Values of onnx.TensorProto.
_FLOAT_TYPES = {1: "float32", 10: "float16"}

OPTIONS: dict[str, Row] = {
    "ActivationSymmetric": to("recipe.activation_symmetric"),
    "ActivationRestrictedAsymmetric": to("emulate.restricted_asymmetric"),
    "WeightSymmetric": to("recipe.weight_symmetric"),
    "MinimumRealRange": to("recipe.min_real_range", number(float, 0.0)),
    "EnableSubgraph": to("select.subgraphs"),
    "ForceQuantizeNoInputCheck": to("place.force_shared"),
    "MatMulConstBOnly": to("select.constant_weights_only"),
    "AddQDQPairToWeight": to("emulate.weight_pairs"),
    "DedicatedQDQPair": to("emulate.dedicated_pairs"),
    "QDQKeepRemovableActivations": to("emulate.keep_activations"),
    "QDQDisableWeightAdjustForInt32Bias": to("emulate.adjust_for_bias", negated),
    "UseQDQContribOps": to("emulate.contrib_ops"),
    "QuantizeBias": to("recipe.quantize_bias"),
    "OpTypesToExcludeOutputQuantization": to("place.unquantized_outputs", read_op_types),
    "QDQOpTypePerChannelSupportToAxis": to("emulate.channel_axes", read_channel_axes),
    "BlockSize": to("recipe.block_size", number(int, 0)),
    "TensorQuantOverrides": to("recipe.overrides", read_overrides(_read_type)),
    "CalibTensorRangeSymmetric": to("calibration.symmetric"),
    "CalibMovingAverage": to("calibration.moving_average"),
    "CalibMovingAverageConstant": to("calibration.constant", number(float, 0.0)),
    "CalibPercentile": to("calibration.percentile", number(float, 0.0)),
    # It bounds memory; one streaming pass is within any bound.
    "CalibMaxIntermediateOutputs": checked(number(int, 1)),
    "CalibStridedMinMax": to("calibration.stride", number(int, 1)),
    "SmoothQuant": to("smooth.asked"),
    "SmoothQuantAlpha": to("smooth.alpha", _read_alpha),
    "SmoothQuantFolding": to("smooth.folding"),
    "DefaultTensorType": to(
        "emulate.assumed_type",
        choice(_FLOAT_TYPES, ": TensorProto.FLOAT or FLOAT16, others are not quantized"),
    ),
    "extra.Sigmoid.nnapi": when_on({"recipe.output_ranges": _NNAPI_SIGMOID}),
}
"""The name of an option -> its row; a new option is one more."""
