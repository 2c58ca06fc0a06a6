"""`quark.onnx.quantization.config.custom_config`: every preset by its name, and as a constant.

>>> from bitwright.compat.quark.onnx.quantization.config.custom_config import U8S8_AAWS_CONFIG
>>> U8S8_AAWS_CONFIG is DefaultConfigMapping["U8S8_AAWS"]
True
"""

from __future__ import annotations

from bitwright.compat.quark.config import (
    PRESET_ARGUMENTS,
    QuantizationConfig,
    get_default_config,
)
from bitwright.errors import did_you_mean

__all__ = [
    "DefaultConfigMapping",
    "get_default_config",
    *(f"{name}_CONFIG" for name in PRESET_ARGUMENTS),
]

DefaultConfigMapping = {name: get_default_config(name) for name in PRESET_ARGUMENTS}
"""The name of a preset -> its configuration. `get_default_config` makes a fresh one."""


def __getattr__(name: str) -> QuantizationConfig:
    preset = name.removesuffix("_CONFIG")
    if name.endswith("_CONFIG") and preset in DefaultConfigMapping:
        return DefaultConfigMapping[preset]
    known = [f"{each}_CONFIG" for each in DefaultConfigMapping]
    raise AttributeError(f"module {__name__!r} has no {name!r}.{did_you_mean(name, known)}")
