"""The operator quantizers of `onnxruntime.quantization.operators.embed_layernorm`."""

from __future__ import annotations

from bitwright.compat.onnxruntime.operators.base_operator import operator_quantizer

__all__ = ["EmbedLayerNormalizationQuant"]

EmbedLayerNormalizationQuant = operator_quantizer("EmbedLayerNormalizationQuant")
