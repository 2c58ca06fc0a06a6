"""`quark.onnx.quantization.config.custom_config`: every preset by its name, and as a constant.

>>> from bitwright.compat.quark.onnx.quantization.config.custom_config import U8S8_AAWS_CONFIG
>>> U8S8_AAWS_CONFIG is DefaultConfigMapping["U8S8_AAWS"]
True
"""

from __future__ import annotations

from bitwright.compat.quark import qconfigs
from bitwright.compat.quark.config import (
    PRESET_ARGUMENTS,
    QuantizationConfig,
    RefusedPreset,
    get_default_config,
)
from bitwright.compat.quark.qconfigs import *  # noqa: F403
from bitwright.errors import did_you_mean
from bitwright.recipe.named import why_no_preset

__all__ = [
    "DefaultConfigMapping",
    "get_default_config",
    "get_default_config_mapping",
    *qconfigs.__all__,
    *(f"{name}_CONFIG" for name in PRESET_ARGUMENTS),
]

DefaultConfigMapping = {name: get_default_config(name) for name in PRESET_ARGUMENTS}
"""The name of a preset -> its configuration. `get_default_config` makes a fresh one."""


def get_default_config_mapping() -> dict[str, QuantizationConfig]:
    """Return the presets by their names.

    >>> "XINT8" in get_default_config_mapping()
    True
    """
    return DefaultConfigMapping


def __getattr__(name: str) -> QuantizationConfig:
    preset = name.removesuffix("_CONFIG").removesuffix("_QCONFIG")
    if name.endswith("_CONFIG") and preset in DefaultConfigMapping:
        return DefaultConfigMapping[preset]
    reason = why_no_preset(preset.lower().replace("_", "-")) if name.endswith("CONFIG") else None
    if reason is not None:
        return RefusedPreset(why=f"there is no preset {preset!r}: {reason}")
    known = [f"{each}_CONFIG" for each in DefaultConfigMapping]
    raise AttributeError(f"module {__name__!r} has no {name!r}.{did_you_mean(name, known)}")
