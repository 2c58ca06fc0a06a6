"""The presets of Quark as configurations of its new kind, `QConfig`.

>>> A8W8_QCONFIG.global_config.weight.data_type
INT8
"""

from __future__ import annotations

from bitwright.compat.quark.algorithms import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from bitwright.compat.quark.config import QConfig
from bitwright.compat.quark.specs import (
    BFloat16Spec,
    BFP16Spec,
    Int8Spec,
    Int16Spec,
    QLayerConfig,
    Spec,
    XInt8Spec,
)

__all__ = [
    "A8W8_ADAQUANT_QCONFIG",
    "A8W8_ADAROUND_QCONFIG",
    "A8W8_QCONFIG",
    "A16W8_ADAQUANT_QCONFIG",
    "A16W8_ADAROUND_QCONFIG",
    "A16W8_QCONFIG",
    "BF16_QCONFIG",
    "BFP16_QCONFIG",
    "XINT8_ADAQUANT_QCONFIG",
    "XINT8_ADAROUND_QCONFIG",
    "XINT8_QCONFIG",
    "adaquant_algo",
    "adaround_algo",
]

adaround_algo = AdaRoundConfig(learning_rate=0.1, num_iterations=1000)
adaquant_algo = AdaQuantConfig(learning_rate=0.00001, num_iterations=3000)


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
