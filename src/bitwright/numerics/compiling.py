"""Loops in machine code where numba is there; it is loaded when the first of them runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

__all__ = ["compiled", "default_engine"]


def default_engine() -> str:
    """Return "numba", or "numpy" where numba is missing or switched off (`BITWRIGHT_NUMBA=0`).

    >>> default_engine() in ("numba", "numpy")
    True
    """
    if os.environ.get("BITWRIGHT_NUMBA", "1") == "0":
        return "numpy"
    return "numba" if _numba_is_there() else "numpy"


@cache
def compiled(function: Callable[..., Any], *, reorder: bool = False) -> Callable[..., Any]:
    """Return the function in machine code, kept on disk for the next process.

    `reorder` lets sums be added up in any order, which is what makes them fast.
    """
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if reorder:
        options["fastmath"] = {"reassoc", "nsz"}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:
        # No folder to cache in (a read-only installation without a home): compile each time.
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


@cache
def _numba_is_there() -> bool:
    return find_spec("numba") is not None
