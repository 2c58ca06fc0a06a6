"""`nncf.quantization`: quantization with accuracy control and without, and of weights alone."""

from __future__ import annotations

from bitwright.compat.nncf.parameters import QuantizationPreset
from bitwright.compat.nncf.quantization.quantize_model import (
    compress_weights,
    quantize,
    quantize_with_accuracy_control,
)

__all__ = ["QuantizationPreset", "compress_weights", "quantize", "quantize_with_accuracy_control"]
