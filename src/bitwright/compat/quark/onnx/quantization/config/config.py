"""`quark.onnx.quantization.config.config`."""

from bitwright.compat.quark.algorithms import AlgoConfig
from bitwright.compat.quark.config import Config, QConfig, QuantizationConfig
from bitwright.compat.quark.data_types import DataType
from bitwright.compat.quark.specs import Int8Spec, QLayerConfig

__all__ = [
    "AlgoConfig",
    "Config",
    "DataType",
    "Int8Spec",
    "QConfig",
    "QLayerConfig",
    "QuantizationConfig",
]
