"""`ONNXQuantizer`, where `onnxruntime.quantization` has it."""

from __future__ import annotations

from bitwright.compat.onnxruntime.quantizers import ONNXQuantizer

__all__ = ["ONNXQuantizer"]
