"""The operator quantizers of `onnxruntime.quantization.operators.where`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["QDQWhere", "QLinearWhere"]

QLinearWhere = operator_quantizer("QLinearWhere")
QDQWhere = operator_quantizer("QDQWhere", QDQOperatorBase)
