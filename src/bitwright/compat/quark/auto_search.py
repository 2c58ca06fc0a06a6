"""`AutoSearch`, `AutoSearchPro` and `dump_model` of Quark: importable, and refused when used."""

from __future__ import annotations

from typing import Any, NoReturn

from bitwright.errors import RecipeError

__all__ = ["AutoSearch", "AutoSearchPro", "dump_model", "get_auto_search_config"]

_TUNE = "bitwright.quantize(..., effort='high') tries what makes a model more accurate."


def _refuse(name: str, instead: str) -> NoReturn:
    raise RecipeError(f"{name} is not supported: {instead}")


class AutoSearch:
    """Tries configurations there; here making one is an error that says what to use.

    >>> AutoSearch("model.onnx", None)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: AutoSearch is not supported: \
bitwright.quantize(..., effort='high') tries what makes a model more accurate.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        _refuse(type(self).__name__, _TUNE)


class AutoSearchPro(AutoSearch):
    """Tries configurations in two stages there; here making one is an error."""


def get_auto_search_config(*arguments: Any, **settings: Any) -> NoReturn:
    """Return the space of a search there; here an error that says what to use."""
    _refuse("get_auto_search_config", _TUNE)


def dump_model(*arguments: Any, **settings: Any) -> NoReturn:
    """Write all tensors of a quantized model to files there; here an error.

    >>> dump_model("model.onnx")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: dump_model is not supported: bitwright.compare measures every \
tensor of a float and a quantized model.
    """
    _refuse(
        "dump_model", "bitwright.compare measures every tensor of a float and a quantized model."
    )
