"""The operator quantizers of `onnxruntime.quantization.operators.direct_q8`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["Direct8BitOp", "QDQDirect8BitOp"]

Direct8BitOp = operator_quantizer("Direct8BitOp")
QDQDirect8BitOp = operator_quantizer("QDQDirect8BitOp", QDQOperatorBase)
