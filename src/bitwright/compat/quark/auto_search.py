"""`AutoSearch`, calibrators and `dump_model` of Quark: importable, and refused when used."""

from __future__ import annotations

from typing import Any, NoReturn

from bitwright.errors import RecipeError

__all__ = [
    "AutoSearch",
    "AutoSearchPro",
    "SearchSpace",
    "VitisExtendedQuantizer",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
    "dump_model",
    "generate_all_configs",
    "get_auto_search_config",
]

_TUNE = "bitwright.quantize(..., effort='high') tries what makes a model more accurate."
_OBSERVE = "bitwright.make_plan returns a plan with the range and scale of every tensor."


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


class SearchSpace(AutoSearch):
    """The space of a search there; here making one is an error."""


def generate_all_configs(*arguments: Any, **settings: Any) -> NoReturn:
    """Return the configurations of a search there; here an error that says what to use."""
    _refuse("generate_all_configs", _TUNE)


class VitisExtendedQuantizer:
    """Quantizes a model from given ranges there; here making one is an error.

    >>> VitisExtendedQuantizer()
    Traceback (most recent call last):
    bitwright.errors.RecipeError: VitisExtendedQuantizer is not supported: \
bitwright.apply_plan quantizes a model from a plan that holds its ranges.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        _refuse(
            type(self).__name__,
            "bitwright.apply_plan quantizes a model from a plan that holds its ranges.",
        )


def create_calibrator_power_of_two(*arguments: Any, **settings: Any) -> NoReturn:
    """Return a calibrator there; here an error that says what to use."""
    _refuse("create_calibrator_power_of_two", _OBSERVE)


def create_calibrator_float_scale(*arguments: Any, **settings: Any) -> NoReturn:
    """Return a calibrator there; here an error that says what to use."""
    _refuse("create_calibrator_float_scale", _OBSERVE)


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
