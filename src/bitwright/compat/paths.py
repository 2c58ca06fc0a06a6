"""Modules at the paths of another tool: the names of modules of ours, by a table."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["add_paths"]


def add_paths(package: str, sources: Mapping[str, Sequence[str]]) -> None:
    """Let imports below a package find modules that have no file there, once.

    `sources` has, for each path, the modules below `bitwright.compat` whose names it has. These
    are imported when a name is first asked for.
    """
    if not any(isinstance(one, _PathFinder) and one.package == package for one in sys.meta_path):
        sys.meta_path.append(_PathFinder(package, sources))


class _PathFinder(MetaPathFinder):
    """Finds the modules of a table below a package."""

    def __init__(self, package: str, sources: Mapping[str, Sequence[str]]) -> None:
        self.package = package
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the table; a path that leads to others is a package."""
        below = fullname.removeprefix(f"{self.package}.")
        if below not in self._sources:
            return None
        is_package = any(other.startswith(f"{below}.") for other in self._sources)
        return ModuleSpec(fullname, _NamesOf(self._sources[below]), is_package=is_package)


class _NamesOf(Loader):
    """Makes a module whose names are those of others."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources

    def exec_module(self, module: ModuleType) -> None:
        """Let the module look for its names in the others."""
        parent = __name__.rpartition(".")[0]

        def get_name(name: str) -> Any:
            if name == "__all__":
                return sorted({known for one in found() for known in one.__all__})
            error = AttributeError(f"module {module.__name__!r} has no {name!r}")
            for one in found() if not name.startswith("__") else ():
                try:
                    return getattr(one, name)
                except AttributeError as unknown:
                    error = unknown
            raise error

        def found() -> list[ModuleType]:
            return [importlib.import_module(f"{parent}.{source}") for source in self._sources]

        vars(module).update(__getattr__=get_name, __dir__=lambda: get_name("__all__"))
