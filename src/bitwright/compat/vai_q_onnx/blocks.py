"""Attributes of shared-exponent formats (`BFPAttributes`, `MXAttributes`) as number types."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from bitwright.compat.options import Changes, Row, read_mapping, refuse_unknown
from bitwright.errors import RecipeError
from bitwright.numerics import SHARED_EXPONENT_FORMATS, BlockFloat, qtype

_ROUNDINGS = ("half-away", "half-up", "half-even")
_COMMON = {"axis": 1, "rounding_mode": 0}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "BFPAttributes": {
        **_COMMON,
        "bfp_method": "to_bfp",
        "bit_width": 16,
        "block_size": 8,
        "sub_block_size": 2,
        "sub_block_shift_bits": 1,
        "convert_to_bfloat_before_bfp": 0,
        "use_compiler_version_cpu_kernel": 0,
    },
    "MXAttributes": {**_COMMON, "element_dtype": "int8", "block_size": 32},
}
_OPTIONS = {"QBFP": "BFPAttributes", "QMX": "MXAttributes"}
# What only one value of can be written: axes are those along which layers sum.
_FIXED = ("axis", "convert_to_bfloat_before_bfp", "use_compiler_version_cpu_kernel")


def attributes_of(option: str) -> Row:
    """Return the row of either option: its attributes, and how mantissas are rounded."""

    def row(what: str, value: Any) -> Changes:
        given = read_mapping(what, value, "attributes")
        mode = given.get("rounding_mode")
        changes: Changes = {f"asked.{option}": given}
        if mode is None:
            return changes
        if mode not in range(len(_ROUNDINGS)):
            raise RecipeError(f"rounding_mode of {what} is 0, 1 or 2, not {mode!r}.")
        return {**changes, "emulate.block_rounding": _ROUNDINGS[mode]}

    return row


def read_block_type(value: Any, options: Mapping[str, Any]) -> Any:
    """Return the number type that QBFP or QMX stands for with these attributes, or the value."""
    option = _OPTIONS.get(value.name if isinstance(value, Enum) else str(value))
    if option is None or not options.get(option):
        return value
    given = options[option]
    refuse_unknown(given, _DEFAULTS[option], f" in {option}")
    wanted = {**_DEFAULTS[option], **given}
    for name in _FIXED:
        if name in wanted and wanted[name] != _DEFAULTS[option][name]:
            raise RecipeError(
                f"{name} in {option} is {_DEFAULTS[option][name]} here, not {wanted[name]!r}."
            )
    for name, described in _described(option).items():
        if all(wanted[key] == is_so for key, is_so in described.items()):
            return qtype(name)
    raise RecipeError(
        f"{option} describes no format that is known: take the attributes of "
        f"{', '.join(_described(option))}."
    )


def _described(option: str) -> dict[str, dict[str, Any]]:
    """Return the formats that an option can ask for, each with what tells it from others."""
    found: dict[str, dict[str, Any]] = {}
    for name, form in SHARED_EXPONENT_FORMATS.items():
        if isinstance(form, BlockFloat) != (option == "BFPAttributes"):
            continue
        if not isinstance(form, BlockFloat):
            found[name] = {"element_dtype": form.element, "block_size": form.block_size}
            continue
        found[name] = {
            "bfp_method": "to_bfp_prime" if form.sub_block_size else "to_bfp",
            "bit_width": form.bit_width,
            "block_size": form.block_size,
        }
        if form.sub_block_size:
            found[name] |= {
                "sub_block_size": form.sub_block_size,
                "sub_block_shift_bits": form.shift_bits,
            }
    return found
