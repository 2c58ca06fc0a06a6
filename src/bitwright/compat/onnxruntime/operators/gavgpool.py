"""The operator quantizers of `onnxruntime.quantization.operators.gavgpool`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["QGlobalAveragePool"]

QGlobalAveragePool = operator_quantizer("QGlobalAveragePool")
