"""Every preset of Quark by its name and as a constant, of either kind of configuration.

>>> A8W8_QCONFIG.global_config.weight.data_type
INT8
>>> from bitwright.compat.quark.presets import U8S8_AAWS_CONFIG
>>> U8S8_AAWS_CONFIG is DefaultConfigMapping["U8S8_AAWS"]
True
"""

from __future__ import annotations

from bitwright.compat.quark.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from bitwright.compat.quark.config import (
    PRESET_ARGUMENTS,
    QConfig,
    QuantizationConfig,
    RefusedPreset,
    get_default_config,
)
from bitwright.compat.quark.specs import (
    BFloat16Spec,
    BFP16Spec,
    Int8Spec,
    Int16Spec,
    QLayerConfig,
    Spec,
    XInt8Spec,
)
from bitwright.errors import did_you_mean
from bitwright.recipe.named import why_no_preset

adaround_algo = AdaRoundConfig(learning_rate=0.1, num_iterations=1000)
adaquant_algo = AdaQuantConfig(learning_rate=0.00001, num_iterations=3000)


# Of the options `FastFinetune`; scripts copy them and change a value.
DEFAULT_ADAROUND_PARAMS: dict[str, object] = {
    "DataSize": 1000,
    "FixedSeed": 1705472343,
    "BatchSize": 2,
    "NumIterations": 1000,
    "LearningRate": 0.1,
    "OptimAlgorithm": "adaround",
    "OptimDevice": "cpu",
    "InferDevice": "cpu",
    "EarlyStop": True,
}
DEFAULT_ADAQUANT_PARAMS = DEFAULT_ADAROUND_PARAMS | {
    "LearningRate": 0.00001,
    "OptimAlgorithm": "adaquant",
}


def _preset(reads: Spec, weight: Spec, *steps: AlgoConfig) -> QConfig:
    return QConfig(QLayerConfig(input_tensors=reads, weight=weight), algo_config=list(steps))


XINT8_QCONFIG = _preset(XInt8Spec(), XInt8Spec())
XINT8_ADAROUND_QCONFIG = _preset(XInt8Spec(), XInt8Spec(), adaround_algo)
XINT8_ADAQUANT_QCONFIG = _preset(XInt8Spec(), XInt8Spec(), adaquant_algo)
A8W8_QCONFIG = _preset(Int8Spec(), Int8Spec())
A8W8_ADAROUND_QCONFIG = _preset(Int8Spec(), Int8Spec(), adaround_algo)
A8W8_ADAQUANT_QCONFIG = _preset(Int8Spec(), Int8Spec(), adaquant_algo)
A16W8_QCONFIG = _preset(Int16Spec(), Int8Spec())
A16W8_ADAROUND_QCONFIG = _preset(Int16Spec(), Int8Spec(), adaround_algo)
A16W8_ADAQUANT_QCONFIG = _preset(Int16Spec(), Int8Spec(), adaquant_algo)
BF16_QCONFIG = _preset(BFloat16Spec(), BFloat16Spec())
BFP16_QCONFIG = _preset(BFP16Spec(), BFP16Spec())

DefaultConfigMapping = {name: get_default_config(name) for name in PRESET_ARGUMENTS}
"""The name of a preset -> its configuration. `get_default_config` makes a fresh one."""


def get_default_config_mapping() -> dict[str, QuantizationConfig]:
    """Return the presets by their names."""
    return DefaultConfigMapping


__all__ = [
    *("DefaultConfigMapping", "adaquant_algo", "adaround_algo"),
    *("get_default_config", "get_default_config_mapping"),
    *(name for name in globals() if name.isupper()),
    *(f"{name}_CONFIG" for name in PRESET_ARGUMENTS),
]


def __getattr__(name: str) -> QuantizationConfig:
    preset = name.removesuffix("_CONFIG").removesuffix("_QCONFIG")
    if name.endswith("_CONFIG") and preset in DefaultConfigMapping:
        return DefaultConfigMapping[preset]
    reason = why_no_preset(preset.lower().replace("_", "-")) if name.endswith("CONFIG") else None
    if reason is not None:
        return RefusedPreset(why=f"there is no preset {preset!r}: {reason}")
    known = [f"{each}_CONFIG" for each in DefaultConfigMapping]
    raise AttributeError(f"module {__name__!r} has no {name!r}.{did_you_mean(name, known)}")
