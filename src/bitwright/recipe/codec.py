"""Recipes and plans as JSON, with complaints a person can act on."""

from __future__ import annotations

import functools
import re
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import QType, qtype
from bitwright.recipe.finetuning import AdaQuant, AdaRound
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import RangeMethod
from bitwright.recipe.options import Override, Placement, Selection, SmoothQuant
from bitwright.recipe.weights import AWQ, RoundingMethod, WeightOnly, WeightOverride

__all__ = ["convert", "encode", "settle_types", "to_name"]

_T = TypeVar("_T")


def to_name(value: Any) -> Any:
    """Return how a number type is stored: by its name; and numpy's numbers, as plain ones."""
    if isinstance(value, QType):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot store a {type(value).__name__}")


def _from_name(kind: type, value: Any) -> Any:
    if kind is QType:
        if not isinstance(value, str):
            raise RecipeError(f"a number type is a name such as 'int8', not {value!r}.")
        return qtype(value)
    raise NotImplementedError(f"cannot read a {kind.__name__}")


def encode(value: msgspec.Struct, *, indent: int = 2) -> bytes:
    """Return any recipe or plan value as JSON, number types by name."""
    text = msgspec.json.encode(value, enc_hook=to_name)
    return msgspec.json.format(text, indent=indent) if indent else text


def convert(data: Any, kind: type[_T], source: str) -> _T:
    """Build a value from plain data, turning msgspec's complaints into ours."""
    try:
        return msgspec.convert(data, kind, dec_hook=_from_name, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, RecipeError):
            raise RecipeError(f"{source}: {error.__cause__}") from error
        raise RecipeError(f"{source}: {_explain(str(error), kind)}") from error


def settle_types(value: msgspec.Struct, source: str) -> None:
    """Give the fields of a value built in Python the types that a file would give them.

    A struct takes whatever it is called with. Here lists become tuples, words become number
    types, and what fits nowhere is an error before any work is done.
    """
    kind = type(value)
    given = {name: getattr(value, name) for name in value.__struct_fields__}
    usual = dict(zip(value.__struct_fields__, kind.__struct_defaults__, strict=True))
    changed = {name: part for name, part in given.items() if part is not usual[name]}
    try:
        data = msgspec.to_builtins(changed, enc_hook=to_name)
    except (NotImplementedError, TypeError) as error:
        raise RecipeError(f"{source}: {error}.") from error
    settled = convert(data, _unchecked(kind), source)
    for name in changed:
        msgspec.structs.force_setattr(value, name, getattr(settled, name))


@functools.cache
def _unchecked(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct of the same fields, each of them optional, that is checked by type only."""
    fields = [(field.name, field.type, None) for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)


# msgspec's names of types, as a person would say them.
_PLAIN = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


_SECTIONS = (
    Selection, Placement, Override, SmoothQuant,
    CrossLayerEqualization, Rewrites, Simulation, Limits, AdaRound, AdaQuant,
    WeightOnly, WeightOverride, AWQ, *RoundingMethod.__args__,
)  # fmt: skip

# A field that names a method -> how these are called, and which there are; else it is of ranges.
_METHODS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "fine_tune": ("fine-tuning", (AdaRound, AdaQuant)),
    "rounding": ("rounding", RoundingMethod.__args__),
}


def _choices(kind: type, name: str) -> tuple[Any, ...]:
    """Return what a field takes, if that is one of a few words."""
    for field in msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ():
        if field.name == name and get_origin(field.type) is Literal:
            return get_args(field.type)
    return ()


def _explain(message: str, kind: type) -> str:
    method = re.search(r"Invalid value `?'?(\w[\w-]*)'?`? - at `\$\.?(.*)method`", message)
    if method is not None:
        name, where = method.groups()
        what, kinds = next(
            (found for field, found in _METHODS.items() if field in where),
            ("range", RangeMethod.__args__),
        )
        known = {kind.__struct_config__.tag for kind in kinds}
        return f"unknown {what} method {name!r}.{did_you_mean(name, known)}"
    unknown = re.search(r"unknown field `(\w+)`(?: - at `\$\.?([\w.\[\]]*)`)?", message)
    wrong = re.search(r"Expected `(.*?)`, got `(.*?)`(?: - at `\$\.?(.*)`)?", message)
    if wrong is not None:
        expected, given, where = wrong.groups()
        wanted = " or ".join(_PLAIN.get(kind, kind) for kind in expected.split(" | "))
        got = _PLAIN.get(given, given)
        return f"option {where or 'recipe'!r} must be {wanted}, not {got}."
    missing = re.search(r"missing required field `(\w+)`(?: - at `\$\.?(.*)`)?", message)
    if missing is not None:
        field, where = missing.groups()
        owner = f"option {where!r}" if where else "it"
        return f"{owner} needs {field!r}; add it."
    choice = re.search(r"Invalid enum value '(.*?)'(?: - at `\$\.?(.*)`)?", message)
    if choice is not None:
        given, where = choice.groups()
        words = ", ".join(map(str, _choices(kind, where)))
        listed = f" Known: {words}." if words else ""
        return f"option {where or 'recipe'!r} cannot be {given!r}.{listed}"
    if unknown is None:
        return message.replace("`", "'") + "."
    key, where = unknown.group(1), unknown.group(2) or ""
    known = set()
    for struct in (kind, *_SECTIONS, *RangeMethod.__args__):
        if where and struct is kind:
            continue
        known.update(getattr(struct, "__struct_fields__", ()))
        if not where:
            break
    place = f" in {where!r}" if where else ""
    return f"unknown option {key!r}{place}.{did_you_mean(key, known)}"
