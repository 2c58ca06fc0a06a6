"""Write a quantized model as ONNX Runtime's tool does, also one in which nothing is quantized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.differences import NOTHING_QUANTIZED, OPTIMIZE_MODEL
from bitwright.compat.onnxruntime.storage import store_parameters
from bitwright.errors import NothingQuantizedError
from bitwright.jobs.result import Result

if TYPE_CHECKING:
    import onnx

__all__ = ["RETIRED", "float_model", "write_model"]

RETIRED = {"optimize_model": OPTIMIZE_MODEL}
"""Arguments of older releases, and what became of them."""


def write_model(
    run: Callable[[], Result],
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    external_data: bool,
) -> Result | None:
    """Write what a job gives; the float model, and None, where it has nothing to quantize.

    >>> import tempfile, warnings, bitwright
    >>> def job(): raise NothingQuantizedError("nothing was quantized.")
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True):
    ...     path = f"{folder}/q.onnx"
    ...     write_model(job, bitwright.load_demo().model_path, path, external_data=False)
    ...     bitwright.inspect(path).is_quantized
    False
    """
    # There the output may be the input; a file is replaced at the end, by a rename.
    graph.check_destination(model_output)
    outside = True if external_data else None
    try:
        result = run()
    except NothingQuantizedError as error:
        graph.save_model(float_model(model_input, error), model_output, external_data=outside)
        return None
    store_parameters(result.model, result.plan)
    graph.save_model(result.model, model_output, external_data=outside)
    return result


def float_model(
    model_input: str | Path | onnx.ModelProto, error: NothingQuantizedError
) -> ir.Model:
    """Return a model as it was, with its shapes, and warn why nothing of it is quantized."""
    NOTHING_QUANTIZED.warn("the model", str(error).removesuffix("."))
    model = graph.load_model(model_input)
    graph.infer_shapes(model)
    return model
