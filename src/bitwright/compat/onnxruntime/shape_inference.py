"""`quant_pre_process` with ONNX Runtime's arguments, on Bitwright's pre-processing."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.api import preprocess
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.peer import hand_on
from bitwright.errors import ModelError, RecipeError, did_you_mean
from bitwright.graph import ExternalData
from bitwright.run import Session
from bitwright.support.scratch import ScratchFolder
from bitwright.support.wording import warn_user

__getattr__, __dir__ = hand_on(__name__)

_LARGE_MODEL = 1 << 31
_HALF_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@raises_builtins()
def quant_pre_process(
    input_model: str | Path | onnx.ModelProto | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Fill in shapes and clean up a model before it is quantized, as ONNX Runtime's tool would.

    The steps are symbolic shape inference, the runtime's basic optimizations (constants, batch
    norms, no-ops; a MatMul and its Add become a Gemm) and ONNX shape inference. One that cannot run
    is left out with a warning that says which and why; the others run. Models over 2 GB and those
    in float16 are optimized by Bitwright's own passes: in little memory, and without casts. The
    former are written with external data. `input_model_path`, the old name of the first argument,
    still works.

    >>> import tempfile, bitwright
    >>> from bitwright.compat.onnxruntime import quant_pre_process
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quant_pre_process(demo.model_path, f"{folder}/ready.onnx")
    ...     bitwright.inspect(f"{folder}/ready.onnx").is_quantized
    False
    """
    source = _read_source(input_model, deprecated_kwargs)
    for name, given in (("input_model", source), ("output_model_path", output_model_path)):
        if given is None:
            raise RecipeError(f"quant_pre_process needs {name}.")
    assert source is not None and output_model_path is not None
    external = read_external_data(
        output_model_path,
        save_as_external_data,
        all_tensors_to_one_file,
        external_data_location,
        external_data_size_threshold,
    )
    graph.check_destination(output_model_path, source=source)
    model = preprocess(
        source,
        optimize=False,
        onnx_shapes=False,
        symbolic_shapes=not skip_symbolic_shape,
        auto_merge=auto_merge,
        int_max=int_max,
        guess_output_rank=guess_output_rank,
        verbose=verbose,
    ).model
    by_runtime = not skip_optimization and is_for_runtime(model)
    preprocess(
        optimize_by_runtime(model) if by_runtime else model,
        output_model_path,
        optimize=not (skip_optimization or by_runtime),
        onnx_shapes=not skip_onnx_shape,
        symbolic_shapes=False,
        external_data=external,
    )


def _read_source(given: Any, deprecated: dict[str, Any]) -> Any:
    """Return the model to read, by the old name of its argument too; others are ignored."""
    if "input_model_path" in deprecated:
        old = deprecated.pop("input_model_path")
        warn_user("input_model_path is now called input_model.", DeprecationWarning)
        given = old if given is None else given
    known = [*inspect.signature(quant_pre_process).parameters][:-1]
    for name in deprecated:
        warn_user(f"ignored: unknown argument {name!r}.{did_you_mean(name, known)}")
    return given


def is_for_runtime(model: ir.Model) -> bool:
    """Return whether the runtime can write what it makes of a model in little memory and as it is.

    It takes the weights several times over, and writes a Cast wherever its processor has no kernel
    of half floats: the model is float32 then.
    """
    values = (*model.graph.inputs, *model.graph.initializers.values())
    is_large = graph.written_size(model) > _LARGE_MODEL
    return not is_large and all(value.dtype not in _HALF_FLOATS for value in values)


def optimize_by_runtime(model: ir.Model) -> ir.Model:
    """Return the model after the runtime's basic optimizations, which it writes to a file."""
    with ScratchFolder("optimize") as scratch:
        file = scratch.path / "optimized.onnx"
        try:
            Session(model, level="basic", optimized_to=file)
        except ModelError as error:
            warn_user(f"pre-processing went on without optimization: {error}")
            return model
        return ir.from_proto(onnx.load(file))


def read_external_data(
    output: str | Path,
    wanted: bool,
    one_file: bool,
    location: str | None,
    threshold: int,
    attributes: bool = True,
) -> ExternalData | None:
    """Return which tensors go to other files, or None; warn of what has no effect."""
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
        raise RecipeError(f"external_data_size_threshold is a number of bytes, not {threshold!r}.")
    # Another tool's page has "./" for "beside the model".
    place = None if location in (None, "", ".", "./") else location
    if not wanted:
        given = {
            "all_tensors_to_one_file": one_file,
            "external_data_location": place is not None,
            "external_data_size_threshold": threshold != 1024,
        }
        idle = [name for name, is_given in given.items() if is_given]
        if idle:
            warnings.warn(
                f"{', '.join(idle)} has no effect without save_as_external_data=True.", stacklevel=3
            )
        return None
    if place is not None and not one_file and not (Path(output).parent / place).is_dir():
        warnings.warn(
            f"external_data_location {place!r} has no effect without "
            "all_tensors_to_one_file=True: each tensor gets a file of its own.",
            stacklevel=3,
        )
        place = None
    return ExternalData(
        location=place, one_file=one_file, threshold=threshold, attributes=attributes
    )
