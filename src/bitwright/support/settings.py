"""Frozen values with named options, the same in Python, YAML and JSON, checked when made."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import (
    Any,
    Literal,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    get_args,
    get_origin,
    runtime_checkable,
)

import msgspec
import numpy as np

from bitwright.errors import RecipeError, did_you_mean
from bitwright.support.arguments import allows, alternatives, describe, show
from bitwright.support.showing import html_tables

_T = TypeVar("_T")


class _ChecksOptions(msgspec.StructMeta):
    """Makes calls of a struct's class as strict as its JSON."""

    def __call__(cls: type[_T], *values: Any, **options: Any) -> _T:  # noqa: N805
        if values:
            raise RecipeError(f"{cls.__name__} takes its options by name, as in name=value.")
        return super().__call__(**_convert_options(cls, options))  # type: ignore[misc, no-any-return]


class Settings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    repr_omit_defaults=True,
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
    bitwright.errors.RecipeError: Tea: option 'minutes' must be a whole number, not 'four'.
    """

    def _repr_html_(self) -> str:
        rows = [(name, repr(value)) for name, value in self.__rich_repr__()]
        return html_tables([(type(self).__name__, ("option", "value"), rows)])

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these options changed; an unknown one is an error.

        A section given as a dict changes only what it names; one given as a value replaces all.

        >>> from bitwright import load_recipe
        >>> changed = load_recipe("int4").replace(weights={"block_size": 128})
        >>> changed.weights.block_size, type(changed.weights.rounding).__name__
        (128, 'GPTQ')
        """
        merged = {name: merge(getattr(self, name, None), new) for name, new in changes.items()}
        return msgspec.structs.replace(self, **_convert_options(type(self), merged))


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


def merge(section: Any, given: Any) -> Any:
    """Return what a new value means where a section stands: a mapping names what changes in it.

    A mapping of another method replaces the section, since methods do not share their options.

    >>> from bitwright import Percentile
    >>> merge(Percentile(percentile=99), {"symmetric": True})
    {'method': 'percentile', 'symmetric': True, 'percentile': 99.0}
    >>> merge(Percentile(percentile=99), {"method": "mse"})
    {'method': 'mse'}
    """
    if not (isinstance(section, Settings) and isinstance(given, Mapping)):
        return given
    config = section.__struct_config__
    if config.tag_field is not None and given.get(config.tag_field, config.tag) != config.tag:
        return given
    changes = {name: merge(getattr(section, str(name), None), new) for name, new in given.items()}
    return {**msgspec.to_builtins(section, enc_hook=to_name), **changes}


def convert(data: Any, kind: type[_T], source: str) -> _T:
    """Build a value from plain data; what does not fit is a `RecipeError` that says where."""
    try:
        return msgspec.convert(data, kind, dec_hook=_from_name, strict=True)
    except RecipeError as error:  # a value of the right type that contradicts another
        raise RecipeError(f"{source}: {error}") from error
    except msgspec.ValidationError as error:
        # msgspec is fast, but its errors are prose: only now is the data looked at here.
        problem = next(_find_problems(data, kind, ""), f"{error}.")
        raise RecipeError(f"{source}: {problem}") from error


def _convert_options(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
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
    converted = convert(data, _types_only(kind), kind.__name__)
    return {name: getattr(converted, name) for name in options}


@functools.cache
def _types_only(kind: type) -> type[msgspec.Struct]:
    """Return a struct of the same fields, each of them optional, that is checked by type only."""
    fields = [(field.name, field.type, None) for field in _fields(kind).values()]
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _find_problems(data: Any, hint: Any, path: str) -> Iterator[str]:
    """Give a sentence for each place where plain data is not what its annotation asks for."""
    owner = f"option {path!r}" if path else "it"
    fitting = [one for one in alternatives(hint) if allows(_stored(one), data)]
    if not fitting:
        wanted = describe(*map(_stored, alternatives(hint)))
        yield f"{owner} must be {wanted}, not {show(data)}."
        return
    structs = [one for one in fitting if _is_struct(one)]
    if structs:
        yield from _find_in_struct(data, structs, path)
        return
    kind, inner = get_origin(fitting[0]), get_args(fitting[0])
    if inner == (Any,):
        return  # long lists of scales, which need not be looked at one by one
    if kind is Literal and data not in inner:
        others = [one for one in alternatives(hint) if get_origin(one) is not Literal]
        instead = f" It may also be {describe(*map(_stored, others))}." if others else ""
        yield f"{owner} cannot be {show(data)}.{did_you_mean(data, map(str, inner))}{instead}"
    elif kind in (dict, Mapping):
        yield from _find_bad_keys(data)
        for key, value in data.items():
            yield from _find_problems(value, inner[1], f"{path}[{key}]")
    elif kind is list or (kind is tuple and inner[-1] is ...):
        for index, value in enumerate(data):
            yield from _find_problems(value, inner[0], f"{path}[{index}]")
    elif kind is tuple and len(data) != len(inner):
        yield f"{owner} must be a list of {len(inner)}, not of {len(data)}."
    elif kind is tuple:
        for index, (value, one) in enumerate(zip(data, inner, strict=True)):
            yield from _find_problems(value, one, f"{path}[{index}]")


def _find_in_struct(data: Mapping[Any, Any], structs: list[Any], path: str) -> Iterator[str]:
    """Give what is wrong with the options of a struct, or of the one of several that is named."""
    place = f" in {path!r}" if path else ""
    owner = f"option {path!r}" if path else "it"
    tag_field = structs[0].__struct_config__.tag_field
    if tag_field is not None and tag_field in data:
        tags = [struct.__struct_config__.tag for struct in structs]
        if data[tag_field] not in tags:
            name = data[tag_field]
            yield f"unknown {tag_field} {name!r}{place}.{did_you_mean(name, tags)}"
            return
        structs = [structs[tags.index(data[tag_field])]]
    elif len(structs) > 1:
        yield f"{owner} needs {tag_field!r}; add it."
        return
    yield from _find_bad_keys(data)
    fields = _fields(structs[0])
    for name, value in data.items():
        if name in fields:
            yield from _find_problems(value, fields[name].type, f"{path}.{name}".lstrip("."))
        elif name != tag_field:
            yield f"unknown option {name!r}{place}.{did_you_mean(name, fields)}"
    for name, field in fields.items():
        if field.required and name not in data:
            yield f"{owner} needs {name!r}; add it."


@functools.cache
def _fields(struct: type) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(struct)}


def _find_bad_keys(data: Mapping[Any, Any]) -> Iterator[str]:
    for key in data:
        if not isinstance(key, str):
            yield f"names of options are text, which {show(key)} is not."


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _stored(hint: Any) -> Any:
    """Return the annotation of what files hold for a type, whatever is inside it."""
    kind = get_origin(hint) or hint
    if kind is Literal:
        return type(get_args(hint)[0])
    if kind in (list, tuple):
        return Sequence
    if kind in (dict, Mapping) or _is_struct(kind):
        return Mapping
    return Any if hasattr(kind, "from_name") else hint  # a `Named` type refuses by itself


# Dicts and lists that cannot be changed --------------------------------------------------------


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise TypeError(f"this {kind} belongs to a frozen value and cannot be changed; make a new one.")


class FrozenDict(dict[Any, Any]):
    """A dict that is only read; equal to a dict of the same items, and shown as one by JSON."""

    __setitem__ = __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that is only read."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def frozen(value: Any) -> Any:
    """Return a dict or list, and those inside it, as frozen ones; other values as they are."""
    if isinstance(value, FrozenDict | FrozenList):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: frozen(inner) for key, inner in value.items()})
    return FrozenList(map(frozen, value)) if isinstance(value, list) else value
