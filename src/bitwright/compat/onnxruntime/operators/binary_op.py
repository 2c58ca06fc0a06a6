"""The operator quantizers of `onnxruntime.quantization.operators.binary_op`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QLinearBinaryOp"]

QLinearBinaryOp = operator_quantizer("QLinearBinaryOp")
