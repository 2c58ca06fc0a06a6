"""`quark.onnx.quantize`."""

from bitwright.compat.quark.quantizer import quantize_dynamic, quantize_static

__all__ = ["quantize_dynamic", "quantize_static"]
