"""Models to time: their files and names; how often they run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from bitwright import graph
from bitwright.errors import ModelError, TargetError
from bitwright.support.progress import Progress

__all__ = ["TimedModel", "Timing"]


class TimedModel:
    """A model to time: its file and its name."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often, or how long, models are run to be timed.

    >>> Timing(seconds=0).check(["model.onnx"])
    Traceback (most recent call last):
    bitwright.errors.TargetError: seconds must be above 0, not 0.
    """

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
