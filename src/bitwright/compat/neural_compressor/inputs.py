"""Calibration data by Neural Compressor's convention: a loader of (inputs, label)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from bitwright import graph
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.data import Sample, open_data
from bitwright.errors import DataError
from bitwright.jobs.opening import input_specs
from bitwright.support.wording import warn_user

ModelSource = str | Path | onnx.ModelProto | ir.Model | ONNXModel


def source_of(model: ModelSource) -> Any:
    """Return a model as our own functions take it."""
    if isinstance(model, ONNXModel):
        return model.wrapped
    if hasattr(model, "graph") and hasattr(model, "model"):
        return model.model  # the wrapper of Neural Compressor itself
    return model


def prepare_inputs(
    model: ModelSource, n_samples: int, dataloader: Any, providers: Sequence[str]
) -> tuple[list[Sample], onnxruntime.SessionOptions]:
    """Return the samples of a loader as checked dicts, and options for a session.

    The loader gives (inputs, label); inputs are a dict, an array, or one array for each input. Any
    other data that Bitwright reads will do as well. No model is opened and no file is written.

    >>> import bitwright
    >>> demo = bitwright.load_demo()
    >>> loader = [(image[None], 0) for image in demo.calibration[:4]]
    >>> inputs, _ = prepare_inputs(demo.model_path, 2, loader, ["CPUExecutionProvider"])
    >>> len(inputs), list(inputs[0])
    (2, ['image'])
    """
    available_providers(providers)
    work = graph.load_model(source_of(model))
    graph.normalize(work)
    specs = input_specs(work)
    samples = open_data(Loader(dataloader, n_samples, len(specs)), specs)
    return list(samples), onnxruntime.SessionOptions()


def available_providers(providers: Sequence[str]) -> list[str]:
    """Return those of the providers that are there, with a warning about the others."""
    known = onnxruntime.get_available_providers()
    for provider in providers:
        if provider not in known:
            warn_user(f"{provider} is left out: this ONNX Runtime does not have it.")
    return [each for each in providers if each in known] or ["CPUExecutionProvider"]


def count_inputs(model: ModelSource) -> int:
    """Return how many inputs of a model have to be fed."""
    return len(input_specs(graph.load_model(source_of(model))))


def feed_of(inputs: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what a loader gives for inputs by their names: a dict, an array, or one for each."""
    if isinstance(inputs, Mapping):
        return {name: np.asarray(value) for name, value in inputs.items()}
    given = [inputs] if len(names) == 1 else list(inputs)
    if len(given) != len(names):
        raise DataError(f"a loader gives {len(given)} inputs, and the model has {len(names)}.")
    return {name: np.asarray(value) for name, value in zip(names, given, strict=True)}


class Loader:
    """The inputs that a loader gives, as often as it can be read, up to a number of samples."""

    def __init__(self, dataloader: Any, n_samples: int, inputs: int) -> None:
        if dataloader is None:
            raise DataError("there is no calibration data; give a loader of (inputs, label).")
        if n_samples != -1 and n_samples < 1:
            raise DataError(f"n_samples is -1 for all, or at least 1, not {n_samples}.")
        self._source = dataloader
        # What can be read once only is kept: some methods look twice.
        if hasattr(dataloader, "__next__") or callable(getattr(dataloader, "get_next", None)):
            self._source = list(_items(dataloader))
        size = getattr(dataloader, "batch_size", None)
        self._batch = size if isinstance(size, int) and size > 0 else 1
        self._most = n_samples
        self._inputs = inputs

    def __iter__(self) -> Iterator[Any]:
        for index, item in enumerate(_items(self._source)):
            if self._most != -1 and (index + 1) * self._batch > self._most:
                if not index:
                    raise DataError(
                        f"n_samples={self._most} is less than one batch of {self._batch}."
                    )
                return
            yield _without_label(item, self._inputs)


def _items(source: Any) -> Iterator[Any]:
    if callable(getattr(source, "get_next", None)):
        if callable(getattr(source, "rewind", None)):
            source.rewind()
        while (item := source.get_next()) is not None:
            yield item
        return
    if isinstance(source, (Mapping, np.ndarray)):
        raise DataError(
            f"a loader gives one (inputs, label) after another, and this is one "
            f"{type(source).__name__}; put it into a list."
        )
    if not hasattr(source, "__iter__"):
        raise DataError(f"a {type(source).__name__} cannot be read as calibration data.")
    yield from source


def _without_label(item: Any, inputs: int) -> Any:
    """Return what of a loader's item is fed to the model."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        return item
    # A pair of arrays for a model with two inputs has no label.
    return item if inputs == 2 and hasattr(item[0], "shape") else item[0]
