"""`quant_pre_process` with ONNX Runtime's arguments, on Bitwright's pre-processing."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.api import preprocess
from bitwright.errors import RecipeError, did_you_mean
from bitwright.graph import ExternalData

if TYPE_CHECKING:
    import onnx

__all__ = ["quant_pre_process", "read_external_data"]


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

    The steps are symbolic shape inference, optimization (constants, batch norms, no-ops) and ONNX
    shape inference. One that cannot run is left out with a warning that says which and why; the
    others run. Names of tensors and nodes stay. Models over 2 GB are read lazily and are written
    with external data. `input_model_path`, the old name of the first argument, still works.

    >>> import tempfile, bitwright
    >>> from bitwright.compat.onnxruntime import quant_pre_process
    >>> demo = bitwright.load_demo()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quant_pre_process(demo.model_path, f"{folder}/ready.onnx")
    ...     bitwright.inspect(f"{folder}/ready.onnx").is_quantized
    False
    """
    if "input_model_path" in deprecated_kwargs:
        old = deprecated_kwargs.pop("input_model_path")
        if input_model is not None:
            raise RecipeError("input_model and input_model_path are the same; give input_model.")
        warnings.warn(
            "input_model_path is now called input_model.", DeprecationWarning, stacklevel=2
        )
        input_model = old
    for name in deprecated_kwargs:
        known = [*inspect.signature(quant_pre_process).parameters][:-1]
        raise RecipeError(f"unknown argument {name!r}.{did_you_mean(name, known)}")
    for name, given in (("input_model", input_model), ("output_model_path", output_model_path)):
        if given is None:
            raise RecipeError(f"quant_pre_process needs {name}.")
    assert input_model is not None and output_model_path is not None
    external = read_external_data(
        output_model_path,
        save_as_external_data,
        all_tensors_to_one_file,
        external_data_location,
        external_data_size_threshold,
    )
    preprocess(
        input_model,
        output_model_path,
        optimize=not skip_optimization,
        onnx_shapes=not skip_onnx_shape,
        symbolic_shapes=not skip_symbolic_shape,
        auto_merge=auto_merge,
        int_max=int_max,
        guess_output_rank=guess_output_rank,
        verbose=verbose,
        external_data=external,
    )


def read_external_data(
    output: str | Path,
    wanted: bool,
    one_file: bool,
    location: str | None,
    threshold: int,
    attributes: bool = True,
) -> ExternalData | None:
    """Return which tensors of a model go to other files, or None; what has no effect is warned of.

    >>> read_external_data("m.onnx", True, True, "weights.bin", 0).location
    'weights.bin'
    """
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
                f"{', '.join(idle)} has no effect without save_as_external_data=True.",
                stacklevel=3,
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
