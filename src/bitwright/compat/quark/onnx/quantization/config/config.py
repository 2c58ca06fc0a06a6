"""`quark.onnx.quantization.config.config`."""

from bitwright.compat.quark.config import Config, QConfig, QuantizationConfig
from bitwright.compat.quark.specs import QLayerConfig

__all__ = ["Config", "QConfig", "QLayerConfig", "QuantizationConfig"]
