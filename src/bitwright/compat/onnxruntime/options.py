"""`extra_options` and `TensorQuantOverrides`, translated into a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bitwright.compat.onnxruntime.enums import QuantType, as_member
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import QType
from bitwright.recipe import Override, Placement, Selection, SmoothQuant

__all__ = [
    "Handler",
    "RecipeParts",
    "channel_axes",
    "check_options",
    "check_sample_count",
    "flag",
    "number",
    "op_types",
    "overrides",
    "read_names",
    "read_switch",
    "translate_options",
]

_OVERRIDE_KEYS = (
    "quant_type",
    "axis",
    "scale",
    "zero_point",
    "symmetric",
    "reduce_range",
    "rmin",
    "rmax",
    "block_size",
    "convert",
)
_CONVERT_KEYS = (
    "quant_type",
    "scale",
    "zero_point",
    "symmetric",
    "rmin",
    "rmax",
    "recv_nodes",
)


class RecipeParts:
    """The fields of a recipe, gathered option by option."""

    def __init__(self) -> None:
        self.recipe: dict[str, Any] = {}
        self.select: dict[str, Any] = {}
        self.place: dict[str, Any] = {}
        self.calibration: dict[str, Any] = {}
        self.smooth: dict[str, Any] = {}

    def choose_nodes(
        self,
        op_types: Sequence[str] | None,
        nodes: Sequence[str] | None,
        exclude: Sequence[str] | None,
    ) -> None:
        """Select nodes as the arguments of the same meaning do: an empty list asks for nothing."""
        for field, argument, given in (
            ("op_types", "op_types_to_quantize", op_types),
            ("nodes", "nodes_to_quantize", nodes),
            ("exclude", "nodes_to_exclude", exclude),
        ):
            names = read_names(argument, given)
            if names:
                self.select[field] = names

    def build(self) -> dict[str, Any]:
        """Return the recipe's fields."""
        return {
            **self.recipe,
            "smooth": self._build_smooth(),
            "select": Selection(**self.select),
            "place": Placement(**self.place),
        }

    def _build_smooth(self) -> SmoothQuant | None:
        settings = dict(self.smooth)
        asked = settings.pop("asked", None)
        if asked is None and settings:
            raise RecipeError(
                "SmoothQuantAlpha and SmoothQuantFolding go with SmoothQuant=True; add it."
            )
        return SmoothQuant(**settings) if asked else None


def translate_options(options: Mapping[str, Any] | None) -> RecipeParts:
    """Return what the options ask for; an unknown key is an error with a suggestion.

    >>> translate_options({"ActivationSymmetric": True}).recipe
    {'activation_symmetric': True}
    >>> translate_options({"BlokSize": 32})
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown option 'BlokSize'. Did you mean 'BlockSize'?
    """
    parts = RecipeParts()
    for key, value in check_options(options).items():
        handler = _HANDLERS.get(key)
        if handler is None:
            raise RecipeError(f"unknown option {key!r}.{did_you_mean(key, _HANDLERS)}")
        handler(parts, key, value)
    return parts


def check_options(options: Any) -> Mapping[str, Any]:
    """Return `extra_options` as a mapping of names, or say what else it is."""
    options = {} if options is None else options
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise RecipeError(f"extra_options is a dict of option names, not {options!r}.")
    return options


def read_names(argument: str, given: Any) -> tuple[str, ...]:
    """Return a list of names, as an argument gives it; None is an empty one.

    >>> read_names("nodes_to_exclude", "conv1")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: nodes_to_exclude is a list of names, not 'conv1'.
    """
    if given is None:
        return ()
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    names = tuple(given) if is_list else (None,)
    if not all(isinstance(name, str) for name in names):
        raise RecipeError(f"{argument} is a list of names, not {given!r}.")
    return names


def read_switch(argument: str, given: Any) -> bool:
    """Return an argument that is True or False, or 1 or 0; None is False.

    >>> read_switch("per_channel", 1)
    True
    """
    if given is None:
        return False
    if not isinstance(given, bool | np.bool_ | int) or given not in (0, 1):
        raise RecipeError(f"{argument} is True or False, not {given!r}.")
    return bool(given)


Handler = Callable[[RecipeParts, str, Any], None]


def flag(section: str, name: str, *, negate: bool = False) -> Handler:
    """Handle a key that is True or False, as a field of one section."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if value is None:
            return
        getattr(parts, section)[name] = read_switch(f"option {key!r}", value) != negate

    return handle


def number(section: str, name: str, kind: type, least: float) -> Handler:
    """Handle a key that is a number, as a field of one section."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if value is None:
            return
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise RecipeError(f"option {key!r} is a number, not {value!r}.") from error
        if kind is int and number != value and not isinstance(value, str):
            raise RecipeError(f"option {key!r} is a whole number, not {value!r}.")
        if not number >= least:
            raise RecipeError(f"option {key!r} must be at least {least:g}, not {value!r}.")
        getattr(parts, section)[name] = number

    return handle


def op_types(parts: RecipeParts, key: str, value: Any) -> None:
    """Handle the list of op types whose outputs get no pair."""
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RecipeError(f"option {key!r} is a list of op types, not {value!r}.")
    parts.place["unquantized_outputs"] = tuple(value)


def channel_axes(parts: RecipeParts, key: str, value: Any) -> None:
    """Handle the dict of op types and their channel axes."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise RecipeError(f"option {key!r} is a dict of op types, not {value!r}.")
    axes = {}
    for op_type, entry in value.items():
        axis = entry.get("axis") if isinstance(entry, Mapping) else entry
        if not isinstance(axis, int):
            raise RecipeError(f"option {key!r} maps {op_type!r} to an axis, not {entry!r}.")
        axes[op_type] = axis
    parts.place["channel_axes"] = axes


TypeReader = Callable[[Any, str], QType]


def _read_type(value: Any, what: str) -> QType:
    return as_member(QuantType, value, what).qtype


def overrides(read_type: TypeReader) -> Handler:
    """Handle `TensorQuantOverrides`, its types read as the package has them."""

    def handle(parts: RecipeParts, key: str, value: Any) -> None:
        if value is not None and not isinstance(value, Mapping):
            raise RecipeError(f"option {key!r} is a dict of tensor names, not {value!r}.")
        parts.recipe["overrides"] = {
            tensor: _override(tensor, entries, read_type)
            for tensor, entries in (value or {}).items()
        }

    return handle


def _override(tensor: str, entries: Any, read_type: TypeReader) -> Override:
    """Turn one dict, or one for each channel, into an override; every entry is checked."""
    where = f"TensorQuantOverrides[{tensor!r}]"
    is_list = isinstance(entries, Sequence) and not isinstance(entries, str)
    if not is_list or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise RecipeError(f"{where} is a list of dicts, not {entries!r}.")
    fields = _override_fields(where, entries, _OVERRIDE_KEYS, read_type)
    converts = [entry["convert"] for entry in entries if entry.get("convert") is not None]
    if len(entries) > 1 and converts:
        raise RecipeError(f"{where}: 'convert' is for whole activations, not for channels.")
    if converts:
        fields["convert"], fields["convert_for"] = _convert(
            f"{where}['convert']", converts[0], read_type
        )
    return _build_override(where, fields)


def _convert(
    where: str, entry: Any, read_type: TypeReader
) -> tuple[Override, tuple[str, ...] | None]:
    if not isinstance(entry, Mapping):
        raise RecipeError(f"{where} is a dict, not {entry!r}.")
    receivers = entry.get("recv_nodes")
    if isinstance(receivers, str):
        raise RecipeError(f"{where}['recv_nodes'] is a set of node names, not {receivers!r}.")
    override = _build_override(where, _override_fields(where, [entry], _CONVERT_KEYS, read_type))
    return override, None if receivers is None else tuple(sorted(receivers))


def _build_override(where: str, fields: Mapping[str, Any]) -> Override:
    try:
        return Override(**fields)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def _override_fields(
    where: str,
    entries: Sequence[Mapping[str, Any]],
    known: Sequence[str],
    read_type: TypeReader,
) -> dict[str, Any]:
    for name in (name for entry in entries for name in entry):
        if name not in known:
            raise RecipeError(f"{where} has the unknown key {name!r}.{did_you_mean(name, known)}")
    fields: dict[str, Any] = {}
    for name in ("quant_type", "axis", "symmetric", "reduce_range", "block_size"):
        values = {str(entry[name]): entry[name] for entry in entries if name in entry}
        if len(values) > 1:
            raise RecipeError(f"{where}: all channels must agree on {name!r}.")
        if values:
            fields[name] = next(iter(values.values()))
    if "quant_type" in fields:
        fields["qtype"] = read_type(fields.pop("quant_type"), f"quant_type in {where}")
    if len(entries) > 1 and "axis" not in fields:
        raise RecipeError(f"{where} has an entry for each channel and needs 'axis' in the first.")
    for name, kind in (("scale", float), ("zero_point", int), ("rmin", float), ("rmax", float)):
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


# NNAPI's sigmoid gives multiples of 1/256 from 0 to 255/256.
_NNAPI_SIGMOID = (0.0, 255 / 256)


def _sigmoid_nnapi(parts: RecipeParts, key: str, value: Any) -> None:
    if value:
        parts.recipe["output_ranges"] = {"Sigmoid": _NNAPI_SIGMOID}


# Values of onnx.TensorProto.
_FLOAT_TYPES = {1: "float32", 10: "float16"}


def _assumed_type(parts: RecipeParts, key: str, value: Any) -> None:
    if value is None:
        return
    if value not in _FLOAT_TYPES:
        raise RecipeError(
            f"option {key!r} is TensorProto.FLOAT (1) or TensorProto.FLOAT16 (10), not {value!r}; "
            "tensors of other types are not quantized."
        )
    parts.recipe["assumed_type"] = _FLOAT_TYPES[value]


def check_sample_count(parts: RecipeParts, key: str, value: Any) -> None:
    """Check an option that bounds memory: one streaming pass always does, so any bound is met."""
    if value is not None and (not isinstance(value, int) or value < 1):
        raise RecipeError(f"option {key!r} is a positive number of samples, not {value!r}.")


_HANDLERS: dict[str, Handler] = {
    "ActivationSymmetric": flag("recipe", "activation_symmetric"),
    "ActivationRestrictedAsymmetric": flag("recipe", "restricted_asymmetric"),
    "WeightSymmetric": flag("recipe", "weight_symmetric"),
    "MinimumRealRange": number("recipe", "min_real_range", float, 0.0),
    "EnableSubgraph": flag("select", "subgraphs"),
    "ForceQuantizeNoInputCheck": flag("place", "force_shared"),
    "MatMulConstBOnly": flag("select", "constant_weights_only"),
    "AddQDQPairToWeight": flag("place", "weight_pairs"),
    "DedicatedQDQPair": flag("place", "dedicated_pairs"),
    "QDQKeepRemovableActivations": flag("place", "keep_activations"),
    "QDQDisableWeightAdjustForInt32Bias": flag("place", "adjust_for_bias", negate=True),
    "UseQDQContribOps": flag("place", "contrib_ops"),
    "QuantizeBias": flag("recipe", "quantize_bias"),
    "OpTypesToExcludeOutputQuantization": op_types,
    "QDQOpTypePerChannelSupportToAxis": channel_axes,
    "BlockSize": number("recipe", "block_size", int, 0),
    "TensorQuantOverrides": overrides(_read_type),
    "CalibTensorRangeSymmetric": flag("calibration", "symmetric"),
    "CalibMovingAverage": flag("calibration", "moving_average"),
    "CalibMovingAverageConstant": number("calibration", "constant", float, 0.0),
    "CalibPercentile": number("calibration", "percentile", float, 0.0),
    "CalibMaxIntermediateOutputs": check_sample_count,
    "CalibStridedMinMax": number("calibration", "stride", int, 1),
    "SmoothQuant": flag("smooth", "asked"),
    "SmoothQuantAlpha": number("smooth", "alpha", float, 0.0),
    "SmoothQuantFolding": flag("smooth", "folding"),
    "DefaultTensorType": _assumed_type,
    "extra.Sigmoid.nnapi": _sigmoid_nnapi,
}
