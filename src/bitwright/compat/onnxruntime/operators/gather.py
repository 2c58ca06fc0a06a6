"""The operator quantizers of `onnxruntime.quantization.operators.gather`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["GatherQuant", "QDQGather"]

GatherQuant = operator_quantizer("GatherQuant")
QDQGather = operator_quantizer("QDQGather", QDQOperatorBase)
