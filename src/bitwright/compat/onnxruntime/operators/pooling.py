"""The operator quantizers of `onnxruntime.quantization.operators.pooling`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QLinearPool"]

QLinearPool = operator_quantizer("QLinearPool")
