"""The operator quantizers of `onnxruntime.quantization.operators.softmax`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QLinearSoftmax"]

QLinearSoftmax = operator_quantizer("QLinearSoftmax")
