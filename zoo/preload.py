"""What every process needs, imported once before they are forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import pkgutil
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import bitwright


class _OneThread(onnxruntime.SessionOptions):
    """Sessions of one thread: the models are tiny, and threads that wait in a loop cost most."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 1


def preload(exporters: Sequence[str] = ()) -> None:
    """Import all of bitwright, and what these exporters take; without any, nothing of torch."""
    skipped = (".compat.",) if exporters else (".compat.", ".learning")
    for module in pkgutil.walk_packages(bitwright.__path__, "bitwright."):
        if not any(part in module.name for part in skipped) and "__main__" not in module.name:
            importlib.import_module(module.name)
    onnxruntime.SessionOptions = _OneThread
    _quantize_once()
    if exporters:
        _export_once(exporters)
    # What is here stays: collections in the processes to come need not go over it.
    gc.freeze()


def _quantize_once() -> None:
    """Run what loads and compiles at its first use; its sessions, and their threads, end here."""
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "once",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [{"x": weight[:1]}] * 4
    bitwright.preprocess(model)
    for recipe in (None, "int8-dynamic", "int4-rtn", "int4-gptq"):
        bitwright.quantize(model, data=data, recipe=recipe, progress=False)
    gc.collect()


def _export_once(exporters: Sequence[str]) -> None:
    """Export something: the imports and tables of the exporter take longer than most exports."""
    import torch

    torch.set_num_threads(1)
    if "dynamo" in exporters:
        from torch.onnx._internal.exporter import _registration

        registry = _registration.ONNXRegistry
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for exporter in exporters:
            path = str(Path(folder) / "one.onnx")
            network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).eval()
            dynamo = exporter == "dynamo"
            torch.onnx.export(network, (torch.ones(1, 2),), path, dynamo=dynamo, verbose=False)
