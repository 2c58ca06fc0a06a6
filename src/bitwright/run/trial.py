"""Whether ONNX Runtime opens a model, which it may refuse or crash by: asked in another process."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph.tensors import serialized_size
from bitwright.run.opening import runtime_reason, spill
from bitwright.support import ScratchFolder, WorkerError, try_file


def try_opening(model: ir.Model | Path, limit: int = 1 << 62) -> None:
    """Raise a ModelError if the runtime refuses a model of at most `limit` bytes, or crashes by it.

    It is opened in another process, as users will open it.
    """
    try:
        if isinstance(model, Path):
            try_file(model)
        elif serialized_size(model) <= limit:
            with ScratchFolder("trial") as scratch:
                with scratch.writing():
                    path = spill(model, scratch.path, plain_caches=True)
                try_file(path, "it")
    except WorkerError as error:
        raise ModelError(f"ONNX Runtime refuses the model: {runtime_reason(error)}") from error


def opens(model: ir.Model) -> bool:
    """Whether the runtime opens a model as users will, with its optimizations."""
    try:
        try_opening(model)
    except ModelError:
        return False
    return True


def check_still_opens(changed: ir.Model, original: ir.Model, limit: int = 1 << 62) -> bool:
    """Raise a ModelError if the runtime opens a model and not what was made of it.

    False: it opens neither, as models that are for a GPU. Above `limit` bytes it is not asked.
    """
    try:
        try_opening(changed, limit)
    except ModelError:
        if opens(original):
            raise
        return False
    return True
