"""`--set`: a recipe with some fields changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bitwright.errors import RecipeError, did_you_mean
from bitwright.recipe import (
    CrossLayerEqualization,
    Limits,
    Override,
    Placement,
    Recipe,
    Rewrites,
    Selection,
    Simulation,
    SmoothQuant,
    WeightOnly,
    WeightOverride,
)

__all__ = ["change_recipe"]

_METHOD_FIELDS = ("ranges", "weight_ranges", "fine_tune", "weights.rounding")
_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "select": Selection,
    "place": Placement,
    "smooth": SmoothQuant,
    "equalize": CrossLayerEqualization,
    "rewrite": Rewrites,
    "simulate": Simulation,
    "limits": Limits,
    "weights": WeightOnly,
}
_OVERRIDES: dict[tuple[str, ...], type[msgspec.Struct]] = {
    ("overrides",): Override,
    ("weights", "overrides"): WeightOverride,
}


def change_recipe(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with `key=value` settings applied; keys are dotted paths into its JSON.

    >>> change_recipe(Recipe(), ["ranges.method=percentile", "ranges.percentile=99.9"]).ranges
    Percentile(symmetric=False, percentile=99.9)
    >>> change_recipe(Recipe(), ["per_chanel=true"])
    Traceback (most recent call last):
    bitwright.errors.RecipeError: --set: unknown option 'per_chanel'. Did you mean 'per_channel'?
    """
    if not settings:
        return recipe
    data = msgspec.json.decode(recipe.to_json())
    pairs = [_split(setting) for setting in settings]
    # A method is chosen before its fields are, whatever the order of the words.
    for key, value in sorted(pairs, key=lambda pair: pair[0][-1] != "method"):
        _assign(data, key, value)
    if ("name",) not in [key for key, _ in pairs]:
        data["name"] = f"{recipe.name} (changed)"
    return Recipe.from_mapping(data, source="--set")


def _split(setting: str) -> tuple[tuple[str, ...], str]:
    key, equals, value = setting.partition("=")
    key = key.strip()
    if not equals or not key:
        raise RecipeError(f"--set {setting!r} is not KEY=VALUE; write --set per_channel=true.")
    parts = key.split(".")
    for start in _OVERRIDES:
        if tuple(parts[: len(start)]) == start and len(parts) > len(start) + 1:
            # Names of tensors and nodes have dots too: what is left between the ends is the name.
            inner = len(parts) > len(start) + 2 and parts[-2] in ("ranges", "rounding")
            tail = 2 if inner else 1
            return (*start, ".".join(parts[len(start) : -tail]), *parts[-tail:]), value
    is_whole = value.strip() == "null" or value.lstrip().startswith("{")
    if key in _METHOD_FIELDS and not is_whole:
        parts.append("method")
    return tuple(parts), value


def _assign(data: dict[str, Any], key: tuple[str, ...], text: str) -> None:
    _check_known(key)
    place = data
    for part in key[:-1]:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        place = inner
    if key[-1] == "method":
        # Another method has other fields: none of the old one's may stay.
        place.clear()
    place[key[-1]] = _read_value(text, is_list=_takes_a_list(key))


def _check_known(key: tuple[str, ...]) -> None:
    """Refuse a misspelt key; the fields of a range method depend on the method and come later."""
    top = Recipe.__struct_fields__
    if key[0] not in top:
        everything = {*top, *(f"{name}.{f}" for name in _SECTIONS for f in _fields(name))}
        raise RecipeError(
            f"--set: unknown option {'.'.join(key)!r}.{did_you_mean('.'.join(key), everything)}"
        )
    if len(key) == 1:
        return
    for start, kind in _OVERRIDES.items():
        field = key[len(start) + 1] if len(key) > len(start) + 1 else None
        if key[: len(start)] == start and field not in (None, *kind.__struct_fields__):
            hint = did_you_mean(field or "", kind.__struct_fields__)
            raise RecipeError(f"--set: unknown option {field!r} in {'.'.join(start)!r}.{hint}")
    if key[0] in _SECTIONS:
        if key[1] not in _fields(key[0]):
            hint = did_you_mean(key[1], _fields(key[0]))
            raise RecipeError(f"--set: unknown option {key[1]!r} in {key[0]!r}.{hint}")
    elif key[0] not in ("overrides", *_METHOD_FIELDS):
        raise RecipeError(f"--set: {key[0]!r} is one value and has no field {key[1]!r}.")


def _fields(section: str) -> tuple[str, ...]:
    return _SECTIONS[section].__struct_fields__


def _takes_a_list(key: tuple[str, ...]) -> bool:
    if len(key) != 2 or key[0] not in _SECTIONS:
        return False
    return any(
        field.name == key[1] and "tuple" in str(field.type)
        for field in msgspec.structs.fields(_SECTIONS[key[0]])
    )


def _read_value(text: str, *, is_list: bool) -> Any:
    """Read a value as JSON, or else as a word; lists may also be written a,b,c."""
    text = text.strip()
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        word = {"True": True, "False": False, "None": None}.get(text, text)
        value = word
    if is_list and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
