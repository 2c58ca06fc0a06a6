"""Check values, and the arguments of public functions, against their type annotations."""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar

import numpy as np

from bitwright.errors import ArgumentError, did_you_mean
from bitwright.support.memory_shortage import find_memory_shortage


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, and of anything else just that."""
    return typing.get_args(hint) if _origin(hint) is UnionType else (hint,)


def _origin(hint: Any) -> Any:
    """Return list for list[int], UnionType for either way to write a union, and int for int."""
    origin = typing.get_origin(hint) or hint
    return UnionType if origin is typing.Union else origin


def allows(hint: Any, value: Any) -> bool:
    """Return whether a value is of the annotated type.

    A number of numpy is as good as any; a bool is no number, and text no sequence.

    >>> allows(int | None, np.int64(3)), allows(int, True), allows(Sequence[str], "ab")
    (True, False, False)
    """
    kind = _origin(hint)
    if kind is Any:
        return True
    if kind is UnionType:
        return any(allows(one, value) for one in typing.get_args(hint))
    if kind in _CHECKS:
        return _CHECKS[kind](value, typing.get_args(hint))
    return isinstance(value, NoneType if kind is None else kind)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_sequence(value: Any, items: tuple[Any, ...]) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return False
    return not items or all(allows(items[0], item) for item in value)


def _is_mapping(value: Any, items: tuple[Any, ...]) -> bool:
    if not isinstance(value, Mapping):
        return False
    return not items or all(allows(items[1], item) for item in value.values())


# A kind of value in annotations -> whether a value is of it, given what stands in [brackets].
_CHECKS: dict[Any, Callable[[Any, tuple[Any, ...]], bool]] = {
    bool: lambda value, _: isinstance(value, bool | np.bool_),
    int: lambda value, _: _is_number(value, Integral),
    float: lambda value, _: _is_number(value, Real),
    Path: lambda value, _: isinstance(value, os.PathLike),
    Literal: lambda value, words: any(type(value) is type(word) for word in words),
    Callable: lambda value, _: callable(value),
    Sequence: _is_sequence,
    Mapping: _is_mapping,
}
_WORDS = {
    bool: "True, False",
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    Path: "a path",
    Literal: "a word",
    Callable: "a function",
    Sequence: "a list",
    Mapping: "a mapping",
    dict: "a dict",
    NoneType: "None",
    None: "None",
}


_PLURALS = {str: "names", int: "whole numbers"}


def describe(*hints: Any) -> str:
    """Return what annotations allow, in words.

    >>> describe(Sequence[str] | Path | None)
    'a list of names, a path or None'
    """
    words = dict.fromkeys(_in_words(one) for hint in hints for one in alternatives(hint))
    return " or ".join(", ".join(words).rsplit(", ", 1))


def _in_words(kind: Any) -> str:
    origin = _origin(kind)
    items = typing.get_args(kind)
    if origin is Sequence and items and items[0] in _PLURALS:
        return f"a list of {_PLURALS[items[0]]}"
    return _WORDS.get(origin) or _with_article(origin.__name__)


def show(value: Any) -> str:
    """Return a plain value as it is written, and of others the type."""
    is_plain = value is None or isinstance(value, str | bool | Real)
    return repr(value) if is_plain else _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


_F = TypeVar("_F", bound=Callable[..., Any])


def check_arguments(target: _F) -> _F:
    """Give a function, or a class, that says what is wrong with an argument, and where.

    What is checked is read from the annotations. Names in them that only type checkers import
    stand for anything: whoever uses such a value has more to say about it.

    >>> @check_arguments
    ... def brew(tea: str, *, minutes: int | None = None) -> None: ...
    >>> brew("green", minutes="two")
    Traceback (most recent call last):
    bitwright.errors.ArgumentError: minutes of brew must be a whole number or None, not 'two'.
    >>> brew("green", minute=2)
    Traceback (most recent call last):
    bitwright.errors.ArgumentError: brew has no option 'minute'. Did you mean 'minutes'?
    """
    if isinstance(target, type):
        target.__init__ = _checked(target.__init__, target.__qualname__)  # type: ignore[misc]
        return target
    return _checked(target, target.__qualname__)


def _checked(function: _F, name: str) -> _F:
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*values: Any, **options: Any) -> Any:
        for option in options:
            if option not in signature.parameters:
                hint = did_you_mean(option, signature.parameters.keys() - {"self", "cls"})
                raise ArgumentError(f"{name} has no option {option!r}.{hint}")
        try:
            given = signature.bind(*values, **options)
        except TypeError as error:
            raise ArgumentError(f"{name}: {error}.") from None
        if not hints:
            hints.update(_read_hints(function, signature))
        for option, value in given.arguments.items():
            given.arguments[option] = _fit(value, hints[option], f"{option} of {name}")
        try:
            return function(*given.args, **given.kwargs)
        except MemoryError as error:
            told = find_memory_shortage(error)
            assert told is not None
            if told is error:
                raise
            raise told from error

    return typing.cast(_F, call)


class _Names(dict[str, Any]):
    """The names that a module knows; others, which only type checkers see, stand for anything."""

    def __missing__(self, name: str) -> Any:
        return Any


def _read_hints(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    names = _Names(vars(builtins) | inspect.unwrap(function).__globals__)
    hints = {}
    for option, parameter in signature.parameters.items():
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        hints[option] = eval(hint, {}, names) if isinstance(hint, str) else hint
    return hints


def _fit(value: Any, hint: Any, what: str) -> Any:
    """Return a value that its hint allows; 2e9 is as good a whole number as any."""
    if allows(hint, value):
        return value
    if isinstance(value, float) and value.is_integer() and allows(hint, int(value)):
        return int(value)
    raise ArgumentError(f"{what} must be {describe(hint)}, not {show(value)}.")
