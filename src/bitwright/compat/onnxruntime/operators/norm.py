"""The operator quantizers of `onnxruntime.quantization.operators.norm`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["QDQNormalization"]

QDQNormalization = operator_quantizer("QDQNormalization", QDQOperatorBase)
