"""`quark.onnx.quantization.config.spec`."""

from bitwright.compat.quark.specs import *  # noqa: F403
