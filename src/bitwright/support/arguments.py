"""Check the arguments of public functions against their annotations before any work is done."""

from __future__ import annotations

import builtins
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from bitwright.errors import ArgumentError, did_you_mean
from bitwright.support.annotations import allows, describe, show

__all__ = ["check_arguments"]

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
        return function(*given.args, **given.kwargs)

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
