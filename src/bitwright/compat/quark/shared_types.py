"""The types of `quark.onnx` that are those of `vai_q_onnx` and of ONNX Runtime."""

from bitwright.compat.vai_q_onnx.enums import *  # noqa: F403
from bitwright.compat.vai_q_onnx.enums import __all__ as __all__
