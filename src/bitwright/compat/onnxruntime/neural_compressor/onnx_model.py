"""`ONNXModel`, where `onnxruntime.quantization.neural_compressor` has it."""

from __future__ import annotations

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.onnxruntime.neural_compressor.util import MAXIMUM_PROTOBUF, find_by_name

__all__ = ["MAXIMUM_PROTOBUF", "ONNXModel", "find_by_name"]
