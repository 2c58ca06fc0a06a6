"""`quark.onnx.quantization.quant_utils`, where `quark.onnx.quant_utils` is today."""

from bitwright.compat.quark.onnx.quant_utils import *  # noqa: F403
