"""`onnxconverter_common.float16`: the conversion of `compat.float16` with this tool's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat import float16
from bitwright.compat.onnxruntime.errors import InvalidSettingError


def convert_float_to_float16(
    model: onnx.ModelProto,
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    keep_io_types: bool = False,
    disable_shape_infer: bool = False,
    op_block_list: Sequence[str] | None = None,
    node_block_list: Sequence[str] | None = None,
    check_fp16_ready: bool = True,
) -> onnx.ModelProto:
    """Return a model that is computed in float16; the one that is given is not changed.

    >>> import bitwright
    >>> half = convert_float_to_float16(onnx.load(bitwright.load_demo().model_path))
    >>> half.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    True
    """
    values = (*model.graph.input, *model.graph.output)
    if check_fp16_ready and any(
        value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 for value in values
    ):
        raise InvalidSettingError(
            "The model is already converted to float16; give check_fp16_ready=False to convert "
            "what is left of it."
        )
    return float16.convert_float_to_float16(
        model,
        min_positive_val,
        max_finite_val,
        keep_io_types,
        disable_shape_infer,
        op_block_list,
        node_block_list,
    )


def convert_float_to_float16_model_path(
    model_path: str | Path, *arguments: Any, **options: Any
) -> onnx.ModelProto:
    """Return the model of a file in float16; the arguments are those of the other function."""
    return convert_float_to_float16(onnx.load(model_path), *arguments, **options)


__getattr__ = float16.__getattr__
