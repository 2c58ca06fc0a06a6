"""The operator quantizers of `onnxruntime.quantization.operators.lstm`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["LSTMQuant"]

LSTMQuant = operator_quantizer("LSTMQuant")
