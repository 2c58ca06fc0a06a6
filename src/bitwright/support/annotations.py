"""Check single values against type annotations, and say in words what an annotation allows."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import numpy as np

__all__ = ["allows", "alternatives", "describe", "show"]


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, and of anything else just that.

    >>> alternatives(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
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
    """Return a plain value as it is written, and of others the type.

    >>> show("four"), show(2.5), show(["a"])
    ("'four'", '2.5', 'a list')
    """
    is_plain = value is None or isinstance(value, str | bool | Real)
    return repr(value) if is_plain else _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
