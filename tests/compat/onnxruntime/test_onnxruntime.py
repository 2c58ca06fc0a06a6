"""Each public name of `onnxruntime.quantization` is here, in the module of the same name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import onnxruntime.quantization as peer
import pytest

import bitwright.compat.onnxruntime as ours

OURS, PEER = "bitwright.compat.onnxruntime", "onnxruntime.quantization"
QNN = f"{PEER}.execution_providers"  # a folder without __init__, which is not walked by itself

NOT_OF_THE_PEER = {"TYPE_CHECKING", "to_array_extended"}  # imported from typing and from onnx
MISSING_MEMBERS = {"calibrate.HistogramCollector": "steps of its own counting, another here"}


def modules():
    yield from (found.name for found in pkgutil.walk_packages(peer.__path__, f"{PEER}."))
    yield from (
        f"{QNN}.qnn{rest}"
        for rest in (
            "",
            ".fusion_lpnorm",
            ".fusion_spacetodepth",
            ".mixed_precision_overrides_utils",
            ".preprocess",
            ".quant_config",
        )
    )


def public_names(module):
    """Return what a module of the peer defines, and what it imports from its package."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None)
        of_package = name not in NOT_OF_THE_PEER and (home is None or str(home).startswith(PEER))
        if not name.startswith("_") and not inspect.ismodule(value) and of_package:
            yield name, value


@pytest.mark.parametrize("name", list(modules()))
def test_every_public_name_of_a_module_is_here(name):
    theirs = importlib.import_module(name)
    mine = importlib.import_module(name.replace(PEER, OURS))
    short = name.removeprefix(f"{PEER}.")
    missing, members = [], []
    for public, value in public_names(theirs):
        own = getattr(value, "__module__", name) == name and (
            inspect.isclass(value) or inspect.isfunction(value)
        )
        if not hasattr(mine, public):
            missing.append(public)
        elif own and inspect.isclass(value) and f"{short}.{public}" not in MISSING_MEMBERS:
            kind = getattr(mine, public)
            members += [
                f"{public}.{member}"
                for member in vars(value)
                if not member.startswith("_") and not hasattr(kind, member)
            ]
    assert (missing, members) == ([], [])


def test_the_top_has_all_names_of_the_peers():
    assert [name for name, _ in public_names(peer) if name not in ours.__all__] == []


def test_quantize_is_the_function_and_the_module_can_still_be_imported():
    import bitwright.compat.onnxruntime.quantize  # noqa: F401

    assert callable(ours.quantize)
    assert callable(peer.quantize)
