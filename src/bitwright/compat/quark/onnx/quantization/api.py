"""`quark.onnx.quantization.api`."""

from bitwright.compat.quark.quantizer import ModelQuantizer

__all__ = ["ModelQuantizer"]
