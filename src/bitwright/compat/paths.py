"""Modules at the paths of another tool: ours by a table, the rest as it is installed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bitwright.compat.aliases import ModuleLoader, import_installed


def add_paths(package: str, sources: Mapping[str, Sequence[str]], *peers: str) -> None:
    """Let imports below a package find modules that have no file there, once.

    `sources` has, for each path, the modules below `bitwright.compat` whose names it has; a path
    that leads to others needs none. They are imported when a name is first asked for. What is
    neither there nor a file is the module of one of the `peers`, where it is installed.
    """
    if not any(isinstance(one, _PathFinder) and one.package == package for one in sys.meta_path):
        # Before Python's own finders: these would load a second copy of what is in a package of
        # the peer.
        sys.meta_path.insert(0, _PathFinder(package, sources, peers))


def import_quietly(name: str) -> ModuleType:
    """Import a module of an installed tool, and leave the logging of the process as it is."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return import_installed(name)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _first_installed(peers: Sequence[str], path: str) -> ModuleType | None:
    """Import the module of the first peer that has it."""
    for peer in peers:
        try:
            return import_quietly(f"{peer}.{path}".rstrip("."))
        except ModuleNotFoundError as error:
            if error.name is None or not f"{peer}.{path}.".startswith(f"{error.name}."):
                raise
    return None


def hand_on_names(
    module: str,
    listed: Callable[[str], Any] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose other names are those of an installed one.

    Before it stand the names that are `listed`, and those that few scripts take from here, with
    the module below `bitwright.compat` that has them.
    """
    parent = __name__.rpartition(".")[0]

    def get_name(name: str) -> Any:
        if elsewhere and name in elsewhere:
            return getattr(importlib.import_module(f"{parent}.{elsewhere[name]}"), name)
        with contextlib.suppress(AttributeError):
            if listed is not None:
                return listed(name)
        theirs = None if name.startswith("__") else _first_installed((module,), "")
        if not hasattr(theirs, name):
            raise AttributeError(f"neither Bitwright nor an installed {module} has {name!r}")
        return getattr(theirs, name)

    return get_name


class _PathFinder(MetaPathFinder):
    """Finds the modules of a table below a package, and of the peers behind it."""

    def __init__(
        self, package: str, sources: Mapping[str, Sequence[str]], peers: Sequence[str]
    ) -> None:
        self.package = package
        self._sources = sources
        self._peers = peers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the table; a path that leads to others is a package."""
        if not fullname.startswith(f"{self.package}."):
            return None
        below = fullname.removeprefix(f"{self.package}.")
        file = Path(sys.modules[self.package].__file__ or "").parent.joinpath(*below.split("."))
        has_file = file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()
        is_package = any(other.startswith(f"{below}.") for other in self._sources)
        if below in self._sources or (is_package and not has_file):
            loader = _NamesOf(self._sources.get(below, ()), self._peers, below)
            return ModuleSpec(fullname, loader, is_package=is_package)
        if has_file:
            return None
        module = _first_installed(self._peers, below)
        if module is None:
            return None
        load = ModuleLoader(lambda _: module, below)
        is_package = hasattr(module, "__path__")
        return ModuleSpec(fullname, load, is_package=is_package, origin=module.__file__)


def _own_names(module: ModuleType) -> list[str]:
    """Return the public names of a module, without the modules, classes and functions of others."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "annotations" and not isinstance(value, ModuleType)
        if not isinstance(value, type | FunctionType) or value.__module__ == module.__name__
    ]


class _NamesOf(Loader):
    """Makes a module whose names are those of others, and then the peer's of the same path."""

    def __init__(self, sources: Sequence[str], peers: Sequence[str], path: str) -> None:
        self._sources = sources
        self._peers = peers
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        """Let the module look for its names in the others."""
        parent = __name__.rpartition(".")[0]

        def get_name(name: str) -> Any:
            if name == "__all__":
                return sorted({n for one in found() for n in getattr(one, name, _own_names(one))})
            error = AttributeError(f"module {module.__name__!r} has no {name!r}")
            for one in found() if not name.startswith("__") else ():
                try:
                    return getattr(one, name)
                except AttributeError as unknown:
                    error = unknown
            theirs = None if name.startswith("__") else _first_installed(self._peers, self._path)
            if hasattr(theirs, name):
                return getattr(theirs, name)
            raise error

        def found() -> list[ModuleType]:
            return [importlib.import_module(f"{parent}.{source}") for source in self._sources]

        vars(module).update(__getattr__=get_name, __dir__=lambda: get_name("__all__"))
