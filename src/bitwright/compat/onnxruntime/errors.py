"""Errors that scripts written for ONNX Runtime's tool catch by the built-in types it raises."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from bitwright.errors import (
    BitwrightError,
    DataError,
    EmptyDataError,
    MissingPackageError,
    ModelError,
    OutputError,
    RecipeError,
)
from bitwright.support.wording import warn_user

_P = ParamSpec("_P")
_R = TypeVar("_R")


class InvalidSettingError(RecipeError, ValueError):
    """A setting that is refused, which ONNX Runtime's tool does with a ValueError."""


class InvalidDataError(DataError, ValueError):
    """Calibration data, or a cache of it, that cannot be used."""


class InvalidModelError(ModelError, ValueError):
    """A model that is not there, or that cannot be quantized."""


class InvalidOutputError(OutputError, FileNotFoundError):
    """A place where nothing can be written."""


class PackageNeededError(MissingPackageError, RuntimeError):
    """An optional package is needed and not installed."""


_BUILTIN: dict[type[BitwrightError], type[BitwrightError]] = {
    RecipeError: InvalidSettingError,
    DataError: InvalidDataError,
    ModelError: InvalidModelError,
    OutputError: InvalidOutputError,
    MissingPackageError: PackageNeededError,
}
"""An error -> the same one, derived from the built-in type that the other tool raises."""


def raises_builtins(
    *, retired: Mapping[str, str] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function raise errors that are built-in ones as well.

    `retired` has arguments that older releases of ONNX Runtime's tool had, and why each is ignored
    with a warning.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in [key for key in kwargs if key in (retired or {})]:
                kwargs.pop(name)
                warn_user(f"{name} is ignored: {(retired or {})[name]}.")
            try:
                return function(*args, **kwargs)
            except tuple(_BUILTIN) as error:
                kind = next(new for old, new in _BUILTIN.items() if isinstance(error, old))
                if isinstance(error, kind):
                    raise
                phrase = "No data is collected. " if isinstance(error, EmptyDataError) else ""
                raise kind(f"{phrase}{error}") from error

        return wrapped

    return decorate
