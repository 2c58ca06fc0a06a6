"""The operator quantizers of `onnxruntime.quantization.operators.matmul`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase

__all__ = ["MatMulInteger", "QDQMatMul", "QLinearMatMul", "QOpMatMul"]

QOpMatMul = operator_quantizer("QOpMatMul")
MatMulInteger = operator_quantizer("MatMulInteger", QOpMatMul)
QLinearMatMul = operator_quantizer("QLinearMatMul", QOpMatMul)
QDQMatMul = operator_quantizer("QDQMatMul", QDQOperatorBase)
