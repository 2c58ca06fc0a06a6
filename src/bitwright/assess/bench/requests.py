"""What is timed: models, how often they run, and on which samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from bitwright import graph
from bitwright.data import InputSpec, RandomData, Sample, Samples, Transform, open_data
from bitwright.errors import DataError, ModelError, TargetError, did_you_mean
from bitwright.support.progress import Progress

_RANDOM_SAMPLES = 4
_REAL_SAMPLES = 16


class TimedModel:
    """A model to time: its file and its name."""

    def __init__(
        self, source: graph.ModelSource, index: int, folder: Path, prepared: ir.Model | None = None
    ) -> None:
        """Write what a worker cannot read as it is; `prepared` runs in place of the source."""
        path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        self.model: ir.Model = graph.load_model(source) if prepared is None else prepared
        self.name = str(path) if path is not None else f"model {index + 1}"
        self.size = graph.file_size(source)
        # What is in memory must be written for the worker; so must what is too new for the runtime.
        too_new = self.model.ir_version > graph.runtime_limits().ir_version
        if path is None or too_new or prepared is not None:
            copy = graph.clone_model(self.model)
            copy.ir_version = min(copy.ir_version, graph.runtime_limits().ir_version)
            path = folder / f"{index}.onnx"
            graph.save_model(copy, path)
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often, or how long, models are run to be timed."""

    runs: int | None = None
    """Runs of each model, instead of `seconds`."""
    seconds: float = 3.0
    warm_up: int = 3
    """Runs of each model that are not counted."""
    threads: int | None = None
    providers: Sequence[str] | None = None
    progress: Progress = True

    def check(self, models: Sequence[graph.ModelSource]) -> None:
        """Refuse what cannot be timed."""
        if not models:
            raise ModelError("there is no model to time; give at least one.")
        limits = (
            ("runs", self.runs, 1),
            ("threads", self.threads, 1),
            ("warm-up", self.warm_up, 0),
        )
        for name, value, least in limits:
            if value is not None and value < least:
                raise TargetError(f"{name} must be at least {least}, not {value}.")
        if not self.seconds > 0:
            raise TargetError(f"seconds must be above 0, not {self.seconds:g}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest(Timing):
    """How models are timed, and on which samples; no data makes random ones."""

    data: Any = None
    limit: int | None = None
    transform: Transform = None
    shapes: Mapping[str, Sequence[int] | int] | None = None
    batch: int | None = None
    """So many samples are put into one, along the leading dimension, which must be open."""
    profile: bool = True
    """Whether every node is timed, too; the web's runtime does not tell."""
    runtime: Literal["web"] | None = None
    """onnxruntime-web's WebAssembly in node, one thread; None: the installed runtime."""

    def check(self, models: Sequence[graph.ModelSource]) -> None:
        """Refuse what cannot be timed."""
        Timing.check(self, models)  # not super(): a class with slots is made twice
        if self.runtime == "web" and (self.providers or self.threads not in (None, 1)):
            raise TargetError("the web's runtime has one thread and one provider; leave them out.")

    def open_samples(self, specs: Sequence[InputSpec]) -> tuple[list[Sample], str]:
        """Return the samples for a model with these inputs, and their description."""
        each = 1 if self.batch is None else self.batch
        if each < 1:
            raise DataError(f"a batch needs at least 1 sample, not {self.batch}.")
        wanted = (self.limit or _REAL_SAMPLES) if self.data is not None else _RANDOM_SAMPLES
        opened = self._open(specs, wanted * each)
        stream = iter(opened)
        if self.batch is None:
            return list(stream), opened.description
        batches: list[Sample] = []
        while len(batches) < wanted and (group := list(islice(stream, each))):
            # The last of the data starts again with the first, so that all batches are full.
            while len(group) < each:
                group += group[: each - len(group)]
            batches.append(_stack(group, specs))
        return batches, opened.description

    def _open(self, specs: Sequence[InputSpec], limit: int) -> Samples:
        data = self.data
        if data is None:
            # Of two models one may have other dimensions.
            known = _names(specs)
            own = {name: size for name, size in (self.shapes or {}).items() if name in known}
            data = RandomData(count=limit, shapes=own or None)
        elif self.shapes:
            raise DataError("shapes are for random data; leave them out, or leave the data out.")
        return open_data(data, specs, limit=limit, transform=self.transform)


def check_shapes(
    models: Sequence[Sequence[InputSpec]], shapes: Mapping[str, Sequence[int] | int]
) -> None:
    """Refuse a shape for something that no model has."""
    known = set[str]().union(*map(_names, models))
    for name in shapes:
        if name not in known:
            raise DataError(
                f"a shape was given for {name!r}, which is no input and no open dimension."
                f"{did_you_mean(name, known)}"
            )


def write_samples(samples: Sequence[Sample], folder: Path) -> list[str]:
    """Write each sample to a file of a new folder, for the worker; return their paths."""
    folder.mkdir()
    files = []
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            if array.dtype.kind == "V":
                raise DataError(f"input {name!r} takes {array.dtype}, which cannot be timed yet.")
        path = folder / f"{index}.npz"
        texts = {n: a.astype(np.str_) if a.dtype == object else a for n, a in sample.items()}
        np.savez(path, **texts)  # type: ignore[arg-type]
        files.append(str(path))
    return files


def _names(specs: Sequence[InputSpec]) -> set[str]:
    """Return the inputs and open dimensions that a shape can be given for."""
    dims = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    return dims | {spec.name for spec in specs}


def _stack(group: Sequence[Sample], specs: Sequence[InputSpec]) -> Sample:
    open_inputs = [spec.name for spec in specs if spec.shape and not isinstance(spec.shape[0], int)]
    if not open_inputs:
        first = specs[0]
        raise DataError(
            f"the leading dimension of input {first} is fixed; a batch needs an open one."
        )
    try:
        return group[0] | {
            name: np.concatenate([sample[name] for sample in group]) for name in open_inputs
        }
    except ValueError as error:
        raise DataError(
            f"the samples cannot be put into one batch ({error}); give samples of one shape."
        ) from error
