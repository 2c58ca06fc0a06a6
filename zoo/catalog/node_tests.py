"""The node tests that ship with onnx: over a thousand models of one operator or a few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from zoo.case import save_samples
from zoo.exporters import CALIBRATION, UNSEEN
from zoo.network import Samples, seed_of
from zoo.runner import Model, model_of_file


def models(folder: Path) -> Iterator[Model]:
    """Give each node test that ONNX Runtime can feed, with noise on its own inputs as samples."""
    from onnx.backend.test.loader import load_model_tests

    for test in load_model_tests(kind="node"):
        name = test.name.removeprefix("test_")
        path = folder / "nodes" / f"{name}.onnx"
        if not path.exists() and not _write(Path(test.model_dir), path, name):
            continue
        yield model_of_file(f"nodes/{name}", "onnx", path)


def _write(source: Path, path: Path, name: str) -> bool:
    """Copy a test with samples; False where an input is no tensor, or the runtime has no kernel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model = onnx.load(source / "model.onnx")
    if any(not value.type.HasField("tensor_type") for value in model.graph.input):
        return False
    arrays: dict[str, np.ndarray] = {}
    for index, value in enumerate(model.graph.input):
        file = source / "test_data_set_0" / f"input_{index}.pb"
        if not file.exists():
            return False
        arrays[value.name] = numpy_helper.to_array(TensorProto.FromString(file.read_bytes()))
    onnx.save(model, path)
    save_samples(path.with_suffix(".npz"), _vary(arrays, seed_of(name)))
    return True


def _vary(arrays: Mapping[str, np.ndarray], seed: int) -> Samples:
    """Return samples like the first: floats with a little noise, everything else as it is."""
    rng = np.random.default_rng(seed)

    def noisy(array: np.ndarray) -> Any:
        if array.dtype.kind != "f" or array.dtype.itemsize < 4:
            return array
        return (array * (1 + 0.05 * rng.standard_normal(array.shape))).astype(array.dtype)

    return [{k: noisy(v) for k, v in arrays.items()} for _ in range(CALIBRATION + UNSEEN)]
