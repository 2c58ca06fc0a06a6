"""`TensorQuantOverrides` of ONNX Runtime's tool as an object that is asked, changed and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import onnx

from bitwright.compat.onnxruntime.enums import QuantType
from bitwright.compat.onnxruntime.errors import InvalidSettingError
from bitwright.compat.onnxruntime.override_checks import find_fault

__all__ = ["QuantType", "QuantTypeInfo", "TensorQuantOverridesHelper"]

Entry = dict[str, Any]


@dataclass
class QuantTypeInfo:
    """A number type, and how a tensor is quantized to it; what is None is left to the default.

    >>> QuantTypeInfo(QuantType.QInt8) == QuantTypeInfo(QuantType.QInt8, symmetric=True)
    True
    """

    quant_type: Any
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        pairs = ((self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range))
        return (self.quant_type, self.axis) == (other.quant_type, other.axis) and all(
            mine == theirs or None in (mine, theirs) for mine, theirs in pairs
        )

    # Equality that a None loosens is not transitive, so that no hash goes with it.
    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def load_from_dict(
        raw_dict: Mapping[str, Any],
        default_qtype: QuantType | None = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return what an entry of the overrides says."""
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: Entry) -> None:
        """Write into an entry of the overrides what is not left to the default."""
        raw_dict["quant_type"] = self.quant_type
        chosen = {name: getattr(self, name) for name in ("symmetric", "reduce_range", "axis")}
        raw_dict |= {name: value for name, value in chosen.items() if value is not None}


class TensorQuantOverridesHelper(MutableMapping[str, list[Entry]]):
    """Overrides of tensors; a view of the given dict, which it changes.

    >>> helper = TensorQuantOverridesHelper({"w": [{"axis": 0}]})
    >>> helper.has_per_channel_overrides("w"), helper.has_per_tensor_overrides("w")
    (True, False)
    """

    def __init__(self, raw_overrides: dict[str, list[Entry]]) -> None:
        self.overrides = raw_overrides

    def _first(self, tensor_name: str) -> Entry | None:
        """Return the entry of a tensor, or of its first channel, or None."""
        entries = self.overrides.get(tensor_name)
        return entries[0] if entries else None

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        """Return whether there is an entry for the tensor as a whole."""
        first = self._first(tensor_name)
        return first is not None and "axis" not in first

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        """Return whether there are entries for the tensor's channels."""
        first = self._first(tensor_name)
        return first is not None and "axis" in first

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        """Return whether scale and zero point of the tensor are given."""
        return {"scale", "zero_point"} <= (self._first(tensor_name) or {}).keys()

    def get_per_tensor_overrides(
        self, tensor_name: str, default_val: Entry | None = None
    ) -> Entry | None:
        """Return the entry of a tensor as a whole; entries of channels are an error."""
        if tensor_name not in self.overrides:
            return default_val
        if self.has_per_channel_overrides(tensor_name):
            raise InvalidSettingError(
                f"the overrides of {tensor_name!r} are per channel; those of the whole tensor "
                "were asked for."
            )
        return self._first(tensor_name)

    def get_per_channel_overrides(
        self, tensor_name: str, default_val: list[Entry] | None = None
    ) -> list[Entry] | None:
        """Return the entries of a tensor's channels; one without 'axis' is an error."""
        entries = self.overrides.get(tensor_name, default_val)
        if entries and "axis" not in entries[0]:
            raise InvalidSettingError(
                f"the overrides of {tensor_name!r} have no 'axis', which those of channels need."
            )
        return entries or None

    def get_quant_types(self) -> set[Any]:
        """Return every type that is named, those that tensors are converted to too."""
        entries = [entry for many in self.overrides.values() for entry in many]
        entries += [entry["convert"] for entry in entries if "convert" in entry]
        return {entry["quant_type"] for entry in entries if "quant_type" in entry}

    def is_valid(
        self,
        initializers: Mapping[str, onnx.TensorProto],
        activation_names: Collection[str],
        default_activation_qtype: Any,
    ) -> tuple[bool, str | None]:
        """Return whether all overrides fit the model, and else what is wrong with one."""
        fault = find_fault(self.overrides, initializers, activation_names, default_activation_qtype)
        return fault is None, fault

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Entry,
        channels: Iterable[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Set values for a tensor, or for some channels, and return whether that was done.

        Without `overwrite` nothing is changed where one of the values is set already.
        """
        if not new_vals:
            return False
        entries = self.overrides.get(tensor_name) or [{}]
        chosen = range(len(entries)) if channels is None else set(channels)
        changed = [entry for index, entry in enumerate(entries) if index in chosen]
        if not overwrite and any(new_vals.keys() & entry.keys() for entry in changed):
            return False
        self.overrides[tensor_name] = entries
        for entry in changed:
            entry |= new_vals
        return True

    def get_node_output_qtype_info(
        self, output_name: str, default_qtype: Any, default_symmetric: bool | None = None
    ) -> QuantTypeInfo:
        """Return the type that an activation is quantized to where it is made."""
        entry = self._first(output_name) or {}
        return QuantTypeInfo(
            entry.get("quant_type", default_qtype), entry.get("symmetric", default_symmetric)
        )

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: Any,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type in which a node reads a tensor."""
        entry = self._first(input_name) or {}
        defaults = default_qtype, default_symmetric, default_reduce_range
        if "convert" not in entry:
            return QuantTypeInfo.load_from_dict(entry, *defaults)
        converted = entry["convert"]
        receives = node_name in converted.get("recv_nodes", [node_name])
        kind = converted["quant_type"] if receives else entry.get("quant_type", default_qtype)
        return QuantTypeInfo(kind, converted.get("symmetric", default_symmetric))

    def pprint_str(self, indent: int | None = None) -> str:
        """Return the overrides as JSON, for people to read."""
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        """Return whether nothing is overridden."""
        return not self.overrides

    def get_dict(self) -> dict[str, list[Entry]]:
        """Return the dict that this is a view of."""
        return self.overrides

    def __getitem__(self, key: str) -> list[Entry]:
        return self.overrides[key]

    def __setitem__(self, key: str, value: list[Entry]) -> None:
        self.overrides[key] = value

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __str__(self) -> str:
        return str(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides})"
