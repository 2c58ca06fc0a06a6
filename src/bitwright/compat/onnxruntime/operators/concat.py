"""The operator quantizers of `onnxruntime.quantization.operators.concat`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QLinearConcat"]

QLinearConcat = operator_quantizer("QLinearConcat")
