"""`quark.onnx.quantization.config.data_type`: number types by their names there."""

from bitwright.compat.quark.data_types import *  # noqa: F403
