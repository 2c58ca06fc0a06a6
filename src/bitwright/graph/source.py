"""The file that a model is from, which may be anybody's: it is opened in another process first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import onnx_ir as ir

from bitwright.graph.tensors import serialized_size
from bitwright.support.processes import WorkerError
from bitwright.support.processes.trial import try_file

SOURCE_KEY = "bitwright.source"
"""Where `model.meta` keeps the absolute path that a model was read from."""

_LARGEST = 200_000_000
"""Bytes up to which a model is opened once more: what crashes the runtime is in its graph."""

_tried: set[tuple[str, int, int]] = set()
"""Files that were tried, with their sizes and times."""


def source_path(model: ir.Model) -> Path | None:
    """Return the file that `load_model` read this model from, if it came from one."""
    path = model.meta.get(SOURCE_KEY)
    return Path(path) if path is not None else None


def try_source(model: ir.Model) -> None:
    """Raise a ModelError where ONNX Runtime crashes by the file that a model is from.

    ONNX's own functions do so, too. What is only refused may be taken once it is prepared.
    """
    path = source_path(model)
    if path is None or not path.is_file():
        return
    facts = path.stat()
    key = (str(path), facts.st_size, facts.st_mtime_ns)
    if key not in _tried and serialized_size(model) <= _LARGEST:
        with suppress(WorkerError):
            try_file(path)
        _tried.add(key)
