"""The operator quantizers of `onnxruntime.quantization.operators.conv`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["ConvInteger", "QDQConv", "QLinearConv"]

ConvInteger = operator_quantizer("ConvInteger")
QLinearConv = operator_quantizer("QLinearConv")
QDQConv = operator_quantizer("QDQConv", QDQOperatorBase)
