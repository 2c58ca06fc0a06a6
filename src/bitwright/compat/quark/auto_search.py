"""Names of Quark that are importable here, and refused with a remedy when they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from bitwright.errors import RecipeError

_TUNE = "bitwright.quantize(..., effort='high') tries what makes a model more accurate."
_OBSERVE = "bitwright.make_plan returns a plan with the range and scale of every tensor."
_INSTEAD = {
    **dict.fromkeys(("AutoSearch", "AutoSearchPro", "SearchSpace"), _TUNE),
    **dict.fromkeys(("generate_all_configs", "get_auto_search_config"), _TUNE),
    "VitisExtendedQuantizer": "bitwright.apply_plan quantizes from a plan that holds its ranges.",
    "create_calibrator_float_scale": _OBSERVE,
    "create_calibrator_power_of_two": _OBSERVE,
    "dump_model": "bitwright.compare measures every tensor of a float and a quantized model.",
}
__all__ = list(_INSTEAD)


def __getattr__(name: str) -> Any:
    if name not in _INSTEAD:
        raise AttributeError(f"module {__name__!r} has no {name!r}")
    return _refusal(name)


@cache
def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **settings: Any) -> NoReturn:
        raise RecipeError(f"{name} is not supported: {_INSTEAD[name]}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise an error: {_INSTEAD[name]}"
    return refuse
