"""The operator quantizers of `onnxruntime.quantization.operators.pad`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["QDQPad", "QPad"]

QPad = operator_quantizer("QPad")
QDQPad = operator_quantizer("QDQPad", QDQOperatorBase)
