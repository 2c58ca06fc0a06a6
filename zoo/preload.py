"""What every process needs, imported once before they are forked."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import tempfile
import warnings
from functools import cache
from pathlib import Path

import bitwright


def preload(*, exporting: bool = False) -> None:
    """Import all of bitwright, and what exporting takes."""
    for module in pkgutil.walk_packages(bitwright.__path__, "bitwright."):
        if ".compat." not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    if exporting:
        _export_once()


def _export_once() -> None:
    """Export something: the imports and tables of the exporter take longer than most exports."""
    import torch
    from torch.onnx._internal.exporter import _registration

    torch.set_num_threads(1)
    registry = _registration.ONNXRegistry
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for dynamo in (False, True):
            path = str(Path(folder) / "one.onnx")
            network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval()
            torch.onnx.export(network, (torch.ones(1, 2),), path, dynamo=dynamo, verbose=False)
