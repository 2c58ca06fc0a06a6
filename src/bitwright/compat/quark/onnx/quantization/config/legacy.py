"""`quark.onnx.quantization.config.legacy`."""

from bitwright.compat.quark.config import QuantizationConfig

__all__ = ["QuantizationConfig"]
