"""Write a quantized model as ONNX Runtime's tool does, also one in which nothing is quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.storage import store_parameters
from bitwright.errors import NothingQuantizedError
from bitwright.jobs.result import Result
from bitwright.support.notices import warn_user

if TYPE_CHECKING:
    import onnx

__all__ = ["RETIRED", "float_model", "write_model", "write_of_peer"]

RETIRED = {"optimize_model": "models are quantized as they are; run quant_pre_process before"}
"""Arguments of older releases, and why they are ignored."""


def write_model(
    run: Callable[[], Result],
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    external_data: bool,
) -> Result | None:
    """Write what a job gives; the float model, and None, where it has nothing to quantize."""
    # There the output may be the input; a file is replaced at the end, by a rename.
    graph.check_destination(model_output)
    outside = external_data or None
    try:
        result = run()
    except NothingQuantizedError as error:
        graph.save_model(float_model(model_input, error), model_output, external_data=outside)
        return None
    store_parameters(result.model, result.plan)
    graph.save_model(result.model, model_output, external_data=outside)
    return result


def write_of_peer(
    run: Callable[[], onnx.ModelProto],
    foreign: Iterable[str],
    model_output: str | Path,
    *,
    external_data: bool,
) -> None:
    """Write what the peer's own pass over the nodes gives, and warn that it is that."""
    graph.check_destination(model_output)
    warn_user(
        f"a registry has other classes than the installed ones for {', '.join(sorted(foreign))}: "
        "ONNX Runtime's own quantizer makes the whole model, on ranges that Bitwright finds."
    )
    made = graph.load_model(run())
    graph.save_model(made, model_output, external_data=external_data or None)


def float_model(
    model_input: str | Path | onnx.ModelProto, error: NothingQuantizedError
) -> ir.Model:
    """Return a model as it was, with its shapes, and warn why nothing of it is quantized."""
    warn_user(f"the model is written as it was: {str(error).removesuffix('.')}.")
    model = graph.load_model(model_input)
    graph.infer_shapes(model)
    return model
