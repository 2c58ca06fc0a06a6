"""`install_as`: other tools import Bitwright by the name of the package they were made for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

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
