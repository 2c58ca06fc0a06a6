"""The operator quantizers of `onnxruntime.quantization.operators.argmax`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QArgMax"]

QArgMax = operator_quantizer("QArgMax")
