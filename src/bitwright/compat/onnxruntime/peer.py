"""What is handed on from the installed `onnxruntime.quantization`: its own helpers, as they are.

A module without a file here is the peer's own module of the same path; a module with one takes from
it every name that it does not define. Both load the peer when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from bitwright.compat.paths import import_quietly

OURS = __name__.rpartition(".")[0]
PEER = "onnxruntime.quantization"
# Other names of this kind are Python's: what it asks a module for stays unanswered.
_DUNDER_NAMES = ("__producer__", "__version__")


def peer(module: str = "") -> ModuleType:
    """Import a module of the installed `onnxruntime.quantization`, by its path below it."""
    return import_quietly(f"{PEER}.{module}".rstrip("."))


def hand_on(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a module whose other names are the peer's.

    What the peer's module has from another module of its package, ours has from ours.
    """
    path = module.removeprefix(OURS).lstrip(".")

    def get_name(name: str) -> Any:
        if name == "__all__":  # what an import of * takes, as from a module without a list
            return [known for known in names() if not known.startswith("_")]
        theirs = peer(path) if not name.startswith("__") or name in _DUNDER_NAMES else None
        if hasattr(theirs, name):
            found = getattr(theirs, name)
            home = str(getattr(found, "__module__", ""))
            if home.startswith(f"{PEER}.") and home != f"{PEER}.{path}":
                return getattr(importlib.import_module(f"{OURS}{home.removeprefix(PEER)}"), name)
            return found
        raise AttributeError(
            f"module {module!r} has no {name!r}, nor has {PEER}.{path} of the installed onnxruntime"
        )

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *vars(peer(path))})

    return get_name, names
