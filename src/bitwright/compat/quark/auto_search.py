"""Names of Quark that are importable here, and refused with a remedy when they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from bitwright.errors import RecipeError

_TUNE = "bitwright.quantize(..., effort='high') tries what makes a model more accurate."
_OBSERVE = "bitwright.make_plan returns a plan with the range and scale of every tensor."
_APPLY = "bitwright.apply_plan quantizes a model from a plan that holds its ranges."
_COMPARE = "bitwright.compare measures every tensor of a float and a quantized model."


class AutoSearch:
    """Tries configurations there; here making one is an error that says what to use.

    >>> AutoSearch("model.onnx", None)
    Traceback (most recent call last):
    bitwright.errors.RecipeError: AutoSearch is not supported: \
bitwright.quantize(..., effort='high') tries what makes a model more accurate.
    """

    _instead: ClassVar[str] = _TUNE

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        raise RecipeError(f"{type(self).__name__} is not supported: {self._instead}")


class AutoSearchPro(AutoSearch):
    """Tries configurations in two stages there; here making one is an error."""


class SearchSpace(AutoSearch):
    """The space of a search there; here making one is an error."""


class VitisExtendedQuantizer(AutoSearch):
    """Quantizes a model from given ranges there; here making one is an error."""

    _instead = _APPLY


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **settings: Any) -> NoReturn:
        raise RecipeError(f"{name} is not supported: {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise an error: {instead}"
    return refuse


create_calibrator_power_of_two = _refused("create_calibrator_power_of_two", _OBSERVE)
create_calibrator_float_scale = _refused("create_calibrator_float_scale", _OBSERVE)
dump_model = _refused("dump_model", _COMPARE)
generate_all_configs = _refused("generate_all_configs", _TUNE)
get_auto_search_config = _refused("get_auto_search_config", _TUNE)
