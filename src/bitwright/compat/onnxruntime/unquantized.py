"""Models in which nothing is quantized, written as they are, as ONNX Runtime's tool does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from bitwright import graph
from bitwright.errors import NothingQuantizedError

__all__ = ["or_write_unquantized"]


@contextmanager
def or_write_unquantized(
    model_input: str | Path | onnx.ModelProto, model_output: str | Path, external_data: bool | None
) -> Iterator[None]:
    """Write the model with its shapes inferred, and warn, if nothing in it was quantized.

    Pipelines quantize many models, of which some have nothing to quantize.
    """
    try:
        yield
    except NothingQuantizedError as error:
        model = graph.load_model(model_input)
        graph.infer_shapes(model)
        graph.save_model(model, model_output, external_data=external_data)
        warnings.warn(f"the model is written as it was: {error}", stacklevel=4)
