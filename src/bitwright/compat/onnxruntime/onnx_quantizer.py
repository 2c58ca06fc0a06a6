"""Where `onnxruntime.quantization.onnx_quantizer` has its class."""

from __future__ import annotations

from bitwright.compat.onnxruntime.quantizers import ONNXQuantizer

__all__ = ["ONNXQuantizer"]
