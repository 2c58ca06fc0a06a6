"""`onnxconverter_common.float16`: the conversion of `compat.float16` with this tool's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from bitwright.compat import float16
from bitwright.compat.onnxruntime.errors import InvalidSettingError


def convert_float_to_float16(
    model: onnx.ModelProto,
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    *arguments: Any,
    check_fp16_ready: bool = True,
    **options: Any,
) -> onnx.ModelProto:
    """Return a model that is computed in float16; the other arguments are those of ours.

    >>> import bitwright
    >>> half = convert_float_to_float16(onnx.load(bitwright.load_demo().model_path))
    >>> half.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    True
    """
    values = (*model.graph.input, *model.graph.output)
    types = {value.type.tensor_type.elem_type for value in values}
    if check_fp16_ready and onnx.TensorProto.FLOAT16 in types:
        raise InvalidSettingError(
            "The model is already converted to float16; give check_fp16_ready=False to convert "
            "what is left of it."
        )
    limits = (min_positive_val, max_finite_val)
    return float16.convert_float_to_float16(model, *limits, *arguments, **options)


def convert_float_to_float16_model_path(
    model_path: str | Path, *arguments: Any, **options: Any
) -> onnx.ModelProto:
    """Return the model of a file in float16; the arguments are those of the other function."""
    return convert_float_to_float16(onnx.load(model_path), *arguments, **options)


__getattr__ = float16.__getattr__
