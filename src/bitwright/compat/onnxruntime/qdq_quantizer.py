"""Where `onnxruntime.quantization.qdq_quantizer` has its class."""

from __future__ import annotations

from bitwright.compat.onnxruntime.quantizers import QDQQuantizer

__all__ = ["QDQQuantizer"]
