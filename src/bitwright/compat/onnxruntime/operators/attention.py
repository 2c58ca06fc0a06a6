"""The operator quantizers of `onnxruntime.quantization.operators.attention`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["AttentionQuant"]

AttentionQuant = operator_quantizer("AttentionQuant")
