"""The node tests that ship with onnx: over a thousand models of one operator or a few."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from zoo.case import save_samples
from zoo.network import SAMPLES
from zoo.runner import Model, model_of_file


def models(folder: Path) -> Iterator[Model]:
    """Give each node test whose inputs are tensors, with its own inputs as samples."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for test in tests:
        name = test.name.removeprefix("test_")
        path = folder / "nodes" / f"{name}.onnx"
        if path.exists() or _write(test, path):
            yield model_of_file(f"nodes/{name}", "onnx", path)


def _write(test: TestCase, path: Path) -> bool:
    """Keep a test with samples; False where an input is no tensor."""
    if test.model is None or not test.data_sets:
        return False
    values = test.model.graph.input
    arrays = [_as_array(value) for value in test.data_sets[0][0]]
    if len(arrays) < len(values) or any(array is None for array in arrays):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(test.model, path)
    named = {v.name: a for v, a in zip(values, arrays, strict=False) if a is not None}
    save_samples(path.with_suffix(".npz"), [named] * SAMPLES)
    return True


def _as_array(value: Any) -> np.ndarray | None:
    """Return a tensor as an array that numpy can store without pickling, or None."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    # Types that numpy does not have itself (8-bit floats say they are floats) are stored as bytes.
    return array if array.dtype.kind in "fiub" and array.dtype.isbuiltin == 1 else None
