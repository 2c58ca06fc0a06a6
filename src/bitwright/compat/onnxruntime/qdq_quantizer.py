"""`QDQQuantizer`, where `onnxruntime.quantization` has it."""

from __future__ import annotations

from bitwright.compat.onnxruntime.onnx_quantizer import QDQQuantizer

__all__ = ["QDQQuantizer"]
