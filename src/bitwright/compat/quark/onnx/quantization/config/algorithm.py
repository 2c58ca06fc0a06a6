"""`quark.onnx.quantization.config.algorithm`."""

from bitwright.compat.quark.algorithms import *  # noqa: F403
