"""Frozen values with named options: the same in Python, YAML and JSON, checked as they are made."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

import msgspec
import numpy as np

from bitwright.errors import RecipeError, did_you_mean

__all__ = ["Settings", "convert", "encode", "to_name"]

_T = TypeVar("_T")


class _ChecksOptions(msgspec.StructMeta):
    """Makes calls of a struct's class as strict as its JSON."""

    def __call__(cls: type[_T], *values: Any, **options: Any) -> _T:  # noqa: N805
        if values:
            raise RecipeError(f"{cls.__name__} takes its options by name, as in name=value.")
        return super().__call__(**_settle(cls, options))  # type: ignore[misc, no-any-return]


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    metaclass=_ChecksOptions,
):
    """What a user can set, all of it by name. A misspelt or unfit option is a `RecipeError`.

    >>> class Tea(Settings, frozen=True, kw_only=True):
    ...     minutes: int = 3
    ...     milk: bool = False
    >>> Tea(minute=4)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: Tea: unknown option 'minute'. Did you mean 'minutes'?
    >>> Tea(minutes="four")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: Tea: option 'minutes' must be a whole number, not text.
    """

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these options changed; an unknown one is an error.

        >>> from bitwright import Recipe
        >>> Recipe().replace(per_channel=True).per_channel
        True
        """
        return msgspec.structs.replace(self, **_settle(type(self), changes))


@runtime_checkable
class Named(Protocol):
    """A value that files hold by its name, as a number type is."""

    name: str

    @classmethod
    def from_name(cls, name: Any) -> Self:
        """Return the value of this name."""


def to_name(value: Any) -> Any:
    """Return how a number type is stored: by its name; and numpy's numbers, as plain ones."""
    if isinstance(value, Named):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a value of type {type(value).__name__} has no place here")


def _from_name(kind: type, value: Any) -> Any:
    if hasattr(kind, "from_name"):
        return kind.from_name(value)
    raise NotImplementedError(f"cannot read a {kind.__name__}")


def encode(value: msgspec.Struct, *, indent: int = 2) -> bytes:
    """Return any recipe or plan value as JSON, number types by name."""
    text = msgspec.json.encode(value, enc_hook=to_name)
    return msgspec.json.format(text, indent=indent) if indent else text


def convert(data: Any, kind: type[_T], source: str) -> _T:
    """Build a value from plain data, turning msgspec's complaints into ours."""
    try:
        return msgspec.convert(data, kind, dec_hook=_from_name, strict=True)
    except RecipeError as error:  # a value of the right type that contradicts another
        raise RecipeError(f"{source}: {error}") from error
    except msgspec.ValidationError as error:
        raise RecipeError(f"{source}: {_explain(str(error), kind)}") from error


def _settle(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as given in Python with the types that a file would give them.

    A struct takes whatever it is called with. Here lists become tuples, words become number
    types, and what fits nowhere is an error before any work is done.
    """
    data = {}
    for name, value in options.items():
        try:
            data[name] = msgspec.to_builtins(value, enc_hook=to_name)
        except (NotImplementedError, TypeError) as error:
            raise RecipeError(f"{kind.__name__}: option {name!r}: {error}.") from error
    settled = convert(data, _unchecked(kind), kind.__name__)
    return {name: getattr(settled, name) for name in options}


@functools.cache
def _unchecked(kind: type) -> type[msgspec.Struct]:
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


def _explain(message: str, kind: type) -> str:
    """Say what msgspec complains about as one would to a person."""
    method = re.search(r"Invalid value `?'?(\w[\w-]*)'?`? - at `\$\.?(.*?)\.?method`", message)
    if method is not None:
        name, where = method.groups()
        known = {str(found.__struct_config__.tag) for found in _structs_at(kind, where)}
        return f"unknown method {name!r}{_in(where)}.{did_you_mean(name, known)}"
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
    choice = re.search(r"Invalid enum value '?(.*?)'?(?: - at `\$\.?(.*)`)?$", message)
    if choice is not None:
        given, where = choice.groups()
        words = [
            word
            for found in _types_at(kind, where or "")
            if get_origin(found) is Literal
            for word in get_args(found)
        ]
        listed = f" Known: {', '.join(map(str, words))}." if words else ""
        return f"option {where or 'recipe'!r} cannot be {given!r}.{listed}"
    if "at `key` in" in message:
        return "names of options are text, and one here is not."
    unknown = re.search(r"unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", message)
    if unknown is not None:
        key, where = unknown.group(1), unknown.group(2) or ""
        fields = {name for found in _structs_at(kind, where) for name in found.__struct_fields__}
        return f"unknown option {key!r}{_in(where)}.{did_you_mean(key, fields)}"
    return message.replace("`", "'") + "."


def _in(where: str) -> str:
    return f" in {where!r}" if where else ""


def _structs_at(kind: Any, where: str) -> list[type[msgspec.Struct]]:
    """Return the structs that may stand at a path such as `weights.overrides[...].rounding`."""
    return [
        found
        for found in _types_at(kind, where)
        if isinstance(found, type) and issubclass(found, msgspec.Struct)
    ]


def _types_at(kind: Any, where: str) -> list[Any]:
    """Return the types of which a value at a path may be."""
    kinds = list(_alternatives(kind))
    for part in re.findall(r"\[.*?\]|\w+", where):
        kinds = [
            found for one in kinds for inner in _inside(one, part) for found in _alternatives(inner)
        ]
    return kinds


def _inside(kind: Any, part: str) -> Iterator[Any]:
    """Give the types of a field, or of the values that a mapping or a list holds."""
    if part.startswith("["):
        inner = get_args(kind)
        yield from inner[1:] if get_origin(kind) is dict else inner
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from (field.type for field in msgspec.structs.fields(kind) if field.name == part)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
