"""Modules of other tools: ours under their names (`install_as`), or by a table at their paths."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from bitwright.errors import RecipeError, did_you_mean

REPLACEMENTS = {
    "onnxruntime.quantization": "bitwright.compat.onnxruntime",  # first: others import it
    "neural_compressor": "bitwright.compat.neural_compressor",
    "nncf": "bitwright.compat.nncf",
    "onnxconverter_common": "bitwright.compat.onnxconverter_common",
    "onnxruntime.transformers.float16": "bitwright.compat.float16",
    "onnx_neural_compressor": "bitwright.compat.neural_compressor",
    "quark": "bitwright.compat.quark",
    "vai_q_onnx": "bitwright.compat.vai_q_onnx",
}
"""Which of our packages has the names of which other one."""


def install_as(*names: str) -> None:
    """Answer every later import of these packages, and of what is in them, with Bitwright.

    For tools that quantize through another package, such as Optimum and Olive: call it before they
    are imported. The other package need not be installed.

    >>> install_as("vai_q_onnx")
    >>> import vai_q_onnx
    >>> vai_q_onnx.quantize_static.__module__
    'bitwright.compat.vai_q_onnx.static'
    >>> install_as("onnxruntime.quantisation")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: Bitwright cannot stand in for 'onnxruntime.quantisation'. \
Did you mean 'onnxruntime.quantization'?
    """
    for name in names:
        if name not in REPLACEMENTS:
            hint = did_you_mean(name, REPLACEMENTS)
            raise RecipeError(f"Bitwright cannot stand in for {name!r}.{hint}")
    for name in names:
        _install(name, REPLACEMENTS[name])


def import_installed(name: str) -> ModuleType:
    """Import a module of the package that is installed, also where ours answers for its name."""
    for finder in sys.meta_path:
        if isinstance(finder, _AliasFinder) and finder.answers(name):
            with finder.suspended():
                return importlib.import_module(name)
    return importlib.import_module(name)


def was_imported(name: str) -> bool:
    """Return whether a module of the package that is installed was imported before."""
    hidden = [f.installed for f in sys.meta_path if isinstance(f, _AliasFinder) and f.answers(name)]
    return any(name in modules for modules in hidden or [sys.modules])


def _install(name: str, ours: str) -> None:
    finder = _AliasFinder(name, ours)
    if finder in sys.meta_path:
        return
    finder.installed = finder.take_modules()
    if finder.installed:
        warnings.warn(
            f"{name} was imported before install_as({name!r}): a module that took names from it "
            "keeps them. Call install_as first.",
            stacklevel=3,
        )
    sys.meta_path.insert(0, finder)
    # Also sets the attribute of the package that it is in, which may have the other tool's.
    importlib.import_module(name)


_SUSPENSION = threading.RLock()


class _AliasFinder(MetaPathFinder):
    """Finds our modules under the names of another package."""

    def __init__(self, name: str, ours: str) -> None:
        self.name = name
        self.ours = ours
        self.installed: dict[str, ModuleType] = {}
        """The modules of the other package itself, as far as they were imported."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AliasFinder) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def answers(self, fullname: str) -> bool:
        """Say whether a module is the package, or in it."""
        return fullname == self.name or fullname.startswith(f"{self.name}.")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find our module of this name; None where we have none."""
        if not self.answers(fullname):
            return None
        ours = self.ours + fullname.removeprefix(self.name)
        found = importlib.util.find_spec(ours)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        loader = ModuleLoader(importlib.import_module, ours)
        return ModuleSpec(fullname, loader, is_package=is_package, origin=found.origin)

    def take_modules(self) -> dict[str, ModuleType]:
        """Take the modules that have this name, or are in the package, out of those imported."""
        return {key: sys.modules.pop(key) for key in [*sys.modules] if self.answers(key)}

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let imports find the package that is installed, and keep what they load."""
        with _SUSPENSION:
            ours = self.take_modules()
            sys.modules.update(self.installed)
            sys.meta_path.remove(self)
            try:
                yield
            finally:
                self.installed = self.take_modules()
                sys.modules.update(ours)
                sys.meta_path.insert(0, self)
                package, _, attribute = self.name.rpartition(".")
                if package:
                    setattr(sys.modules[package], attribute, ours[self.name])


class ModuleLoader(Loader):
    """Gives a module that another name has; it stays one module, with two names."""

    def __init__(self, load: Callable[[str], ModuleType], name: str) -> None:
        self.load = load
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its own name."""
        module = self.load(self.name)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing, as it has run; only its own name is given back to it."""
        module.__spec__ = self.own_spec

    def get_code(self, name: str) -> object:
        """Return what `python -m` runs."""
        spec = self.load(self.name).__spec__
        return None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]


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
