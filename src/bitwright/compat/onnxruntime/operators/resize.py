"""The operator quantizers of `onnxruntime.quantization.operators.resize`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.direct_q8 import Direct8BitOp, QDQDirect8BitOp

__all__ = ["QDQResize", "QResize"]

QResize = operator_quantizer("QResize", Direct8BitOp)
QDQResize = operator_quantizer("QDQResize", QDQDirect8BitOp)
