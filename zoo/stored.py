"""Graphs stored small: large initializers are left out and made again from a seed.

What is stored of a weight is its shape and its statistics, so the graph is the exporter's own to
the last node, and its numbers are like those it had.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from zoo.case import Case, load_case
from zoo.network import SAMPLES, Samples, seed_of

MAX_STORED = 64
"""Weights with more elements than this are made again."""
_MARK = "made from a seed: "
_INPUTS = "zoo.inputs"


def store(path: Path, target: Path) -> None:
    """Write a model and what its samples are like, without its large weights, compressed."""
    case = load_case(path)
    model = onnx.load(path)
    for tensor in _tensors(model.graph):
        _strip(tensor)
    described = {name: _describe(array) for name, array in case.calibration[0].items()}
    helper.set_model_props(model, {_INPUTS: json.dumps(described)})
    model.graph.ClearField("value_info")
    target.parent.mkdir(parents=True, exist_ok=True)
    # No time stamp: the same graph gives the same file.
    target.write_bytes(gzip.compress(model.SerializeToString(deterministic=True), 9, mtime=0))


def restore(path: Path, folder: Path) -> Case:
    """Write a stored model with its weights into a folder, and return it with samples."""
    model = onnx.ModelProto.FromString(gzip.decompress(path.read_bytes()))
    for tensor in _tensors(model.graph):
        _fill(tensor)
    described = next(json.loads(p.value) for p in model.metadata_props if p.key == _INPUTS)
    target = folder / path.name.removesuffix(".gz")
    onnx.save(model, target)
    samples = _make_samples(described, seed_of(path.name))
    return Case(target, samples)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Give every constant of a graph and of the graphs inside it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _strip(tensor: TensorProto) -> None:
    if int(np.prod(tensor.dims)) <= MAX_STORED:
        return
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind != "f":
        return
    values = array.astype(np.float64)
    if not np.isfinite(values).all() or (values == values.flat[0]).all():
        return
    facts = [float(f"{x:.5g}") for x in (values.mean(), values.std(), values.min(), values.max())]
    dims, kind, name = list(tensor.dims), tensor.data_type, tensor.name
    tensor.Clear()
    tensor.dims.extend(dims)
    tensor.data_type, tensor.name = kind, name
    tensor.doc_string = _MARK + json.dumps(facts)


def _fill(tensor: TensorProto) -> None:
    if not tensor.doc_string.startswith(_MARK):
        return
    mean, deviation, low, high = json.loads(tensor.doc_string.removeprefix(_MARK))
    rng = np.random.default_rng(seed_of(tensor.name))
    # Within its range: a variance stays above zero.
    values = np.clip(rng.normal(mean, deviation, tuple(tensor.dims)), low, high)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))


def _describe(array: np.ndarray) -> dict[str, Any]:
    described: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiu":
        described["range"] = [float(array.min()), float(array.max())]
        described["deviation"] = float(f"{array.astype(np.float64).std():.4g}")
    return described


def _make_samples(described: dict[str, dict[str, Any]], seed: int) -> Samples:
    rng = np.random.default_rng(seed)

    def make(facts: dict[str, Any]) -> np.ndarray:
        dtype, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
        low, high = facts.get("range", (0, 1))
        if dtype.kind == "f":
            values = rng.normal((low + high) / 2, facts.get("deviation", 0), shape)
            return np.clip(values, low, high).astype(dtype)
        if dtype.kind == "b":
            return rng.random(shape) > 0.5
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype)

    return [{k: make(v) for k, v in described.items()} for _ in range(SAMPLES)]
