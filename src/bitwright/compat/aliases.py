"""`install_as`: other tools import Bitwright by the name of the package they were made for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from bitwright.errors import RecipeError, did_you_mean

__all__ = ["REPLACEMENTS", "install_as"]

REPLACEMENTS = {
    "neural_compressor": "bitwright.compat.neural_compressor",
    "nncf": "bitwright.compat.nncf",
    "onnx_neural_compressor": "bitwright.compat.neural_compressor",
    "onnxruntime.quantization": "bitwright.compat.onnxruntime",
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


def _install(name: str, ours: str) -> None:
    finder = _AliasFinder(name, ours)
    if finder in sys.meta_path:
        return
    imported = [key for key in sys.modules if finder.answers(key)]
    if imported:
        warnings.warn(
            f"{name} was imported before install_as({name!r}): a module that took names from it "
            "keeps them. Call install_as first.",
            stacklevel=3,
        )
    for key in imported:
        del sys.modules[key]
    sys.meta_path.insert(0, finder)
    # Also sets the attribute of the package that it is in, which may have the other tool's.
    importlib.import_module(name)


class _AliasFinder(MetaPathFinder):
    """Finds our modules under the names of another package."""

    def __init__(self, name: str, ours: str) -> None:
        self.name = name
        self.ours = ours

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
        return ModuleSpec(fullname, _AliasLoader(ours), is_package=is_package)


class _AliasLoader(Loader):
    """Gives the module that we have; it stays one module, with two names."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import our module."""
        module = importlib.import_module(self.ours)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing, as it has run; only its own name is given back to it."""
        module.__spec__ = self.own_spec
