"""`--set`: a recipe with some fields changed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from bitwright.errors import RecipeError, did_you_mean
from bitwright.recipe import Recipe
from bitwright.support import Settings, alternatives, merge

_METHOD_FIELDS = ("ranges", "weight_ranges", "fine_tune", "weights.rounding")
_OVERRIDES = (("overrides",), ("weights", "overrides"))
# Section of a recipe -> its fields and their types.
_SECTIONS: dict[str, dict[str, Any]] = {
    field.name: {inner.name: inner.type for inner in msgspec.structs.fields(kind)}
    for field in msgspec.structs.fields(Recipe)
    for kind in alternatives(field.type)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    if field.name not in _METHOD_FIELDS  # whose fields depend on the method
}
_METHOD_OPTIONS = {
    f"{field.name}.{option}"
    for field in msgspec.structs.fields(Recipe)
    if field.name in _METHOD_FIELDS
    for method in alternatives(field.type)
    for option in getattr(method, "__struct_fields__", ())
}


def change_recipe(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with `key=value` settings applied; keys are dotted paths into its JSON."""
    if not settings:
        return recipe
    data = msgspec.json.decode(recipe.to_json())
    pairs = [_split(setting) for setting in settings]
    # A method or a section is chosen before its fields are, whatever the order of the words.
    pairs.sort(key=lambda pair: (pair[0][-1] != "method", not _is_mapping(pair[1]), len(pair[0])))
    for key, value in pairs:
        _assign(data, key, value, functools.reduce(_field, key, recipe))
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
            name = ".".join(parts[len(start) : -tail])
            if len(name) > 1 and name[0] == name[-1] == '"':  # as in overrides."re:a.*".weight
                name = name[1:-1]
            return (*start, name, *parts[-tail:]), value
    is_whole = value.strip() == "null" or _is_mapping(value)
    if key in _METHOD_FIELDS and not is_whole:
        parts.append("method")
    return tuple(parts), value


def _is_mapping(value: str) -> bool:
    return value.lstrip().startswith("{")


def _field(section: Any, name: str) -> Any:
    return getattr(section, name, None) if isinstance(section, Settings) else None


def _assign(data: dict[str, Any], key: tuple[str, ...], text: str, section: Any) -> None:
    """Put a value at its path; a mapping for a section names what changes in it."""
    if key[0] not in data:
        known = {*data, *(f"{name}.{field}" for name in _SECTIONS for field in _SECTIONS[name])}
        known |= _METHOD_OPTIONS
        path = ".".join(key)
        ending = sorted(name for name in known if name.endswith(f".{path}"))
        meant = " or ".join(map(repr, ending))
        hint = f" Did you mean {meant}?" if ending else did_you_mean(path, known)
        raise RecipeError(f"--set: unknown option {path!r}.{hint}")
    place = data
    for part, inner in pairwise(key):
        if place.get(part) is None and (place is not data or part in (*_SECTIONS, "fine_tune")):
            place[part] = {}
        if not isinstance(place[part], dict):
            raise RecipeError(f"--set: {part!r} is one value and has no field {inner!r}.")
        place = place[part]
    _refuse_option_of_another_method(place, key)
    if key[-1] == "method":
        # Another method has other fields: none of the old one's may stay.
        place.clear()
    is_list = len(key) == 2 and "tuple" in str(_SECTIONS.get(key[0], {}).get(key[1]))
    place[key[-1]] = merge(section, _read_value(text, is_list=is_list))


def _refuse_option_of_another_method(place: dict[str, Any], key: tuple[str, ...]) -> None:
    path, option = ".".join(key[:-1]), key[-1]
    if path not in _METHOD_FIELDS:
        return
    kind: Any = Recipe
    for name in key[:-1]:
        hints = {field.name: field.type for field in msgspec.structs.fields(kind)}
        methods = [one for one in alternatives(hints[name]) if hasattr(one, "__struct_fields__")]
        kind = methods[0]
    fields = {method.__struct_config__.tag: method.__struct_fields__ for method in methods}
    having = [str(tag) for tag, options in fields.items() if option in options]
    chosen = place.get("method")
    if chosen in fields and having and chosen not in having:
        raise RecipeError(
            f"--set: {'.'.join(key)!r} is an option of {' and '.join(having)}, and this recipe has "
            f"{path}={chosen}; add --set {path}={having[0]}."
        )


_MAX_BRACKETS = 500
"""More would exhaust the stack in Python 3.11, and give a sentence of pages in 3.14."""


def _read_value(text: str, *, is_list: bool) -> Any:
    """Read a value as JSON, or else as a word; lists may also be written a,b,c."""
    text = text.strip()
    if text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise RecipeError(f"--set: {text[:20]}… is nested too deeply; write fewer brackets.")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    if is_list and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
