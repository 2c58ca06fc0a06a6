"""Loops in machine code where numba is there; it is loaded when the first of them runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any

_find_once = cache(find_spec)


def default_engine() -> str:
    """Return "numba", or "numpy" where numba is missing or switched off (`BITWRIGHT_NUMBA=0`)."""
    if os.environ.get("BITWRIGHT_NUMBA", "1") == "0":
        return "numpy"
    return "numpy" if _find_once("numba") is None else "numba"


@cache
def compiled(
    function: Callable[..., Any],
    *,
    reorder: bool = False,
    parts: tuple[Callable[..., Any], ...] = (),
) -> Callable[..., Any]:
    """Return the function in machine code, kept on disk for the next process.

    `parts` are functions of its module that it calls. `reorder` lets sums be added up in any order,
    which is what makes them fast.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if reorder:
        options["fastmath"] = {"reassoc", "nsz"}
    if parts:
        # Put into a copy of the function, where they cost no calls, and round as if written there.
        bodies = {part.__name__: numba.njit(inline="always", **options)(part) for part in parts}
        function = FunctionType(function.__code__, {**function.__globals__, **bodies})
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:
        # No folder to cache in (a read-only installation without a home): compile each time.
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
