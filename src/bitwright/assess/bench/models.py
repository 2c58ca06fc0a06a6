"""Models to time: their files and names; checks of the timing options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from bitwright import graph
from bitwright.errors import ModelError, TargetError

__all__ = ["TimedModel", "check_options"]


class TimedModel:
    """A model to be timed: where it lies, and what it is called."""

    def __init__(self, source: graph.ModelSource, index: int, folder: Path) -> None:
        path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        self.model: ir.Model = graph.load_model(source)
        self.name = str(path) if path is not None else f"model {index + 1}"
        self.size = graph.file_size(source)
        # What is in memory must be written for the worker; so must what is too new for the runtime.
        too_new = self.model.ir_version > graph.runtime_limits().ir_version
        if path is None or too_new:
            copy = graph.clone_model(self.model)
            copy.ir_version = min(copy.ir_version, graph.runtime_limits().ir_version)
            path = folder / f"{index}.onnx"
            graph.save_model(copy, path)
        self.path = path


def check_options(
    models: Sequence[graph.ModelSource],
    *,
    runs: int | None,
    seconds: float,
    warm_up: int,
    threads: int | None,
) -> None:
    """Refuse what cannot be timed."""
    if not models:
        raise ModelError("there is no model to time; give at least one.")
    for name, value, least in (("runs", runs, 1), ("threads", threads, 1), ("warm-up", warm_up, 0)):
        if value is not None and value < least:
            raise TargetError(f"{name} must be at least {least}, not {value}.")
    if not seconds > 0:
        raise TargetError(f"seconds must be above 0, not {seconds:g}.")
