"""Let onnx-ir load sympy when it first computes a symbolic shape, and not at its import.

That is rare here, and sympy takes a second and 35 MB: half of what it takes to start.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["defer_sympy"]

# The second reads names of the first at once when it is imported.
_DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")


class _StandIn(ModuleType):
    """What onnx-ir holds in place of a module: it imports the module when a name is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for some of these
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class _Finder:
    """Not a subclass of `MetaPathFinder`, whose module takes longer to load than this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "onnx_ir" or any(name in sys.modules for name in _DEFERRED):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = partial(_execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute onnx-ir among stand-ins, which nobody else gets to see."""
    stand_ins = {name: _StandIn(name) for name in _DEFERRED}
    sys.modules.update(stand_ins)
    try:
        execute(module)
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


def defer_sympy() -> None:
    """Do so from now on, where onnx-ir and sympy are not loaded yet.

    >>> defer_sympy()
    >>> import onnx_ir
    >>> str(onnx_ir.SymbolicDim("N") + 1)
    'N + 1'
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
