"""Checks of `TensorQuantOverrides` against a model, in the words of ONNX Runtime's tool.

Scripts match those words. Other than there, every tensor is checked, not only the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from bitwright.errors import RecipeError, did_you_mean

__all__ = ["check_overrides", "find_fault"]

Entry = Mapping[str, Any]
_NOT_WITH_SCALE = ("symmetric", "reduce_range", "rmax", "rmin")


def find_fault(
    overrides: Mapping[str, Any],
    initializers: Mapping[str, onnx.TensorProto],
    activation_names: Collection[str],
    default_activation_type: Any,
) -> str | None:
    """Return what is wrong with the overrides of some tensor, or None.

    >>> find_fault({"x": [{"scale": 1.0}]}, {}, {"x"}, None)
    "Must provide both 'scale' and 'zero_point' if one of the overrides is provided"
    """
    for tensor, entries in overrides.items():
        if tensor not in initializers and tensor not in activation_names:
            return f"Tensor '{tensor}' in TensorQuantOverrides is not present in the model"
        if not isinstance(entries, list):
            return f"Tensor quantization overrides for '{tensor}' are not in a list"
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                return (
                    f"Tensor quantization overrides at index {index} for '{tensor}' "
                    "are not in a dict"
                )
        if not entries or (len(entries) == 1 and not entries[0]):
            continue
        weight = initializers.get(tensor)
        if len(entries) > 1 or entries[0].get("axis") is not None:
            faults = _channel_faults(tensor, entries, weight)
        else:
            faults = _tensor_faults(tensor, entries[0], weight, default_activation_type)
        if fault := next(faults, None):
            return fault
    return None


def check_overrides(
    model: str | Path | onnx.ModelProto, overrides: Mapping[str, Any] | None, default_type: Any
) -> None:
    """Refuse overrides that a model has no place for.

    >>> import bitwright
    >>> check_overrides(bitwright.load_demo().model_path, {"images": [{}]}, None)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: Tensor 'images' in TensorQuantOverrides is not present in the \
model. Did you mean 'image'?
    """
    if not isinstance(overrides, Mapping) or not overrides:
        return
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load(str(model), load_external_data=False)
    graph = model.graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    activations = {value.name for value in graph.input}
    activations |= {name for node in graph.node for name in node.output}
    fault = find_fault(overrides, initializers, activations, default_type)
    if fault is not None:
        hint = ""
        if fault.endswith("is not present in the model"):
            known = {*initializers, *activations}
            hint = next(did_you_mean(name, known) for name in overrides if name not in known)
        raise RecipeError(f"{fault.rstrip('.')}.{hint}")


def _tensor_faults(
    tensor: str, entry: Entry, weight: onnx.TensorProto | None, default_type: Any
) -> Iterator[str]:
    yield from _scale_faults(entry)
    if weight is None:
        yield from _activation_faults(tensor, entry)
    if "convert" not in entry:
        return
    converted = entry["convert"]
    if weight is not None:
        yield "Cannot use 'convert' override for initializers"
    if "quant_type" not in converted:
        yield f"'convert' options (tensor '{tensor}') must specify a 'quant_type'"
    yield from _activation_faults(tensor, converted)
    if converted.get("quant_type") == entry.get("quant_type", default_type):
        yield f"'convert' quant_type must differ from original quant_type (tensor '{tensor}')"
    yield from _scale_faults(converted, f" (tensor '{tensor}')")


def _activation_faults(tensor: str, entry: Entry) -> Iterator[str]:
    if "reduce_range" in entry:
        yield (
            f"Option 'reduce_range' is only supported for initializers, not for activation {tensor}"
        )


def _scale_faults(entry: Entry, where: str = "") -> Iterator[str]:
    given = {"scale", "zero_point"} & entry.keys()
    if len(given) == 1:
        yield (
            f"Must provide both 'scale' and 'zero_point' if one of the overrides is provided{where}"
        )
    idle = [name for name in _NOT_WITH_SCALE if name in entry]
    if given and idle:
        yield (
            f"Tensor override option(s) [{', '.join(idle)}] are invalid with 'scale' and "
            f"'zero_point'{where}"
        )


def _channel_faults(
    tensor: str, entries: list[Entry], weight: onnx.TensorProto | None
) -> Iterator[str]:
    if weight is None:
        yield f"Tensor '{tensor}' has per-channel overrides, but is not an initializer"
        return
    first = entries[0]
    axis = first.get("axis")
    if axis is None:
        yield (
            f"Per-channel overrides for tensor {tensor} is missing an 'axis' value in the first "
            "channel dictionary."
        )
        return
    rank = len(weight.dims)
    if not -rank <= axis < rank:
        yield f"Axis override value is out-of-bounds for tensor {tensor} (rank {rank})"
        return
    channels = weight.dims[axis]
    if len(entries) > 1 and len(entries) != channels:
        yield (
            f"Incorrect number of channel overrides for tensor {tensor} (axis {axis}), "
            f"expected {channels}, but found {len(entries)}."
        )
    for entry in entries:
        if "convert" in entry:
            yield f"Cannot use 'convert' override for initializers, such as {tensor}."
        yield from _scale_faults(entry)
        if len({"rmin", "rmax"} & entry.keys()) == 1:
            yield "Must provide both 'rmin' and 'rmax' if one is provided"
    for index, entry in enumerate(entries):
        yield from _disagreements(tensor, index, first, entry, axes=(axis, axis % rank))


def _disagreements(
    tensor: str, index: int, first: Entry, entry: Entry, axes: tuple[int, int]
) -> Iterator[str]:
    """Yield how a channel differs from the first one where all must be alike."""
    for name, words in (
        ("quant_type", "quantization types"),
        ("symmetric", "symmetric value"),
        ("reduce_range", "reduce_range value"),
    ):
        if name in entry and entry[name] != first.get(name):
            yield f"Channel {words} for tensor '{tensor}' do not match at index {index}."
    if entry.get("axis", axes[0]) not in axes:
        yield f"Channel axis for tensor '{tensor}' does not match at index {index}."
    for pair in (("scale", "zero_point"), ("rmin", "rmax")):
        if pair[0] in first and pair[0] not in entry:
            yield (
                f"Per-channel overrides that specify {'/'.join(pair)} must do so for all channels, "
                f"but tensor '{tensor}' is missing them at index {index}."
            )
