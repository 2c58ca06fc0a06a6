"""`quark.onnx.quantization.config`."""

from bitwright.compat.quark.config import (
    Config,
    QConfig,
    QuantizationConfig,
    get_default_config,
)
from bitwright.compat.quark.specs import QLayerConfig

__all__ = ["Config", "QConfig", "QLayerConfig", "QuantizationConfig", "get_default_config"]
