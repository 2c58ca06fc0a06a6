"""What is handed on from the installed `onnxruntime.quantization`: its own helpers, as they are.

A module without a file here is the peer's own module of the same path; a module with one takes from
it every name that it does not define. Both load the peer when they are first used.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from bitwright.compat.aliases import ModuleLoader, import_installed

__all__ = ["hand_on", "hand_on_modules", "peer"]

OURS = __name__.rpartition(".")[0]
PEER = "onnxruntime.quantization"
_HERE = Path(__file__).parent
# Other names of this kind are Python's: what it asks a module for stays unanswered.
_DUNDER_NAMES = ("__producer__", "__version__")


def peer(module: str = "") -> ModuleType:
    """Import a module of the installed `onnxruntime.quantization`, by its path below it."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return import_installed(f"{PEER}.{module}".rstrip("."))
    finally:  # its matmul_nbits_quantizer sets up the logging of the whole process
        root.setLevel(level)
        root.handlers[:] = handlers


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


class _HandedOnFinder(MetaPathFinder):
    """Finds the peer's modules below our package, where that has no file of the same path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the peer's module of this path; None where ours has a file, or the peer none."""
        if not fullname.startswith(f"{OURS}."):
            return None
        below = fullname.removeprefix(f"{OURS}.")
        file = _HERE.joinpath(*below.split("."))
        if file.with_suffix(".py").is_file() or (file / "__init__.py").is_file():
            return None
        try:
            module = peer(below)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith(PEER):
                return None
            raise
        is_package = hasattr(module, "__path__")
        return ModuleSpec(fullname, ModuleLoader(peer, below), is_package=is_package)


def hand_on_modules() -> None:
    """Let imports below our package find the peer's modules, once.

    Before Python's own finders: these would load a second copy of what is in a package of the peer.
    """
    if not any(isinstance(finder, _HandedOnFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HandedOnFinder())
