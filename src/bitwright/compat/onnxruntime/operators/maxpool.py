"""The operator quantizers of `onnxruntime.quantization.operators.maxpool`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.direct_q8 import Direct8BitOp, QDQDirect8BitOp

__all__ = ["QDQMaxPool", "QMaxPool"]

QMaxPool = operator_quantizer("QMaxPool", Direct8BitOp)
QDQMaxPool = operator_quantizer("QDQMaxPool", QDQDirect8BitOp)
