"""`nncf.quantization`: quantization with accuracy control, and without."""

from __future__ import annotations

from bitwright.compat.nncf.common.quantization.structs import QuantizationPreset
from bitwright.compat.nncf.quantization.quantize_model import (
    quantize,
    quantize_with_accuracy_control,
)

__all__ = ["QuantizationPreset", "quantize", "quantize_with_accuracy_control"]
