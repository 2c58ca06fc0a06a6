"""`QDQQuantizer`, where `onnxruntime.quantization` has it."""

from __future__ import annotations

from bitwright.compat.onnxruntime.quantizers import QDQQuantizer

__all__ = ["QDQQuantizer"]
