"""`quark.onnx.quantization.config`."""

from bitwright.compat.quark.config import (
    Config,
    QConfig,
    QuantizationConfig,
    get_default_config,
)
from bitwright.compat.quark.onnx.quantization.config.custom_config import (
    DefaultConfigMapping,
    get_default_config_mapping,
)
from bitwright.compat.quark.specs import QLayerConfig

__all__ = [
    "Config",
    "DefaultConfigMapping",
    "QConfig",
    "QLayerConfig",
    "QuantizationConfig",
    "get_default_config",
    "get_default_config_mapping",
]
