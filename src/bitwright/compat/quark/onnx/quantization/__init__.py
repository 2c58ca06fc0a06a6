"""`quark.onnx.quantization`: the quantizer and its configurations."""

from bitwright.compat.quark.algorithms import *  # noqa: F403
from bitwright.compat.quark.config import QConfig as QConfig
from bitwright.compat.quark.quantizer import ModelQuantizer as ModelQuantizer
