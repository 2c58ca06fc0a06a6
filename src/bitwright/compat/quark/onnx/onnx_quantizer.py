"""`quark.onnx.onnx_quantizer`."""

from bitwright.compat.quark.onnx_quantizer import *  # noqa: F403
