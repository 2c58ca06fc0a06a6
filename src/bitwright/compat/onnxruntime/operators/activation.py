"""The operator quantizers of `onnxruntime.quantization.operators.activation`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["QDQRemovableActivation", "QLinearActivation"]

QLinearActivation = operator_quantizer("QLinearActivation")
QDQRemovableActivation = operator_quantizer("QDQRemovableActivation", QDQOperatorBase)
