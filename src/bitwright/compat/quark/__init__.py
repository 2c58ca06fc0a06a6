"""What `quark.onnx` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.quark import ModelQuantizer, QConfig
>>> quantizer = ModelQuantizer(QConfig.get_default_config("XINT8"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitwright._lazy import loader
from bitwright.errors import RecipeError

if TYPE_CHECKING:
    from bitwright.compat.onnxruntime import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
    )
    from bitwright.compat.quark.config import (
        AdaQuantConfig,
        AdaRoundConfig,
        AlgoConfig,
        BiasCorrectionConfig,
        CLEConfig,
        Config,
        QConfig,
        QuantizationConfig,
        SmoothQuantConfig,
        get_default_config,
    )
    from bitwright.compat.quark.quantizer import ModelQuantizer
    from bitwright.compat.quark.specs import (
        BFloat16Spec,
        BFP16Spec,
        CalibMethod,
        Float16Spec,
        Int8Spec,
        Int16Spec,
        Int32Spec,
        MX4Spec,
        MX6Spec,
        MX9Spec,
        MXFP4E2M1Spec,
        MXFP6E2M3Spec,
        MXFP6E3M2Spec,
        MXFP8E4M3Spec,
        MXFP8E5M2Spec,
        MXInt8Spec,
        QLayerConfig,
        QuantGranularity,
        ScaleType,
        Spec,
        UInt8Spec,
        UInt16Spec,
        UInt32Spec,
        XInt8Spec,
    )
    from bitwright.compat.vai_q_onnx.enums import (
        ExtendedCalibrationMethod,
        ExtendedQuantFormat,
        ExtendedQuantType,
        Int16Method,
        LayerWiseMethod,
        PowerOfTwoMethod,
        VitisQuantFormat,
        VitisQuantType,
    )

_HOMES = {
    "bitwright.compat.onnxruntime": (
        "CalibrationDataReader",
        "CalibrationMethod",
        "QuantFormat",
        "QuantType",
    ),
    "bitwright.compat.quark.config": (
        "AdaQuantConfig",
        "AdaRoundConfig",
        "AlgoConfig",
        "BiasCorrectionConfig",
        "CLEConfig",
        "Config",
        "QConfig",
        "QuantizationConfig",
        "SmoothQuantConfig",
        "get_default_config",
    ),
    "bitwright.compat.quark.quantizer": ("ModelQuantizer",),
    "bitwright.compat.quark.specs": (
        "BFloat16Spec",
        "BFP16Spec",
        "CalibMethod",
        "Float16Spec",
        "Int8Spec",
        "Int16Spec",
        "Int32Spec",
        "MX4Spec",
        "MX6Spec",
        "MX9Spec",
        "MXFP4E2M1Spec",
        "MXFP6E2M3Spec",
        "MXFP6E3M2Spec",
        "MXFP8E4M3Spec",
        "MXFP8E5M2Spec",
        "MXInt8Spec",
        "QLayerConfig",
        "QuantGranularity",
        "ScaleType",
        "Spec",
        "UInt8Spec",
        "UInt16Spec",
        "UInt32Spec",
        "XInt8Spec",
    ),
    "bitwright.compat.vai_q_onnx.enums": (
        "ExtendedCalibrationMethod",
        "ExtendedQuantFormat",
        "ExtendedQuantType",
        "Int16Method",
        "LayerWiseMethod",
        "PowerOfTwoMethod",
        "VitisQuantFormat",
        "VitisQuantType",
    ),
}

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "BFP16Spec",
    "BFloat16Spec",
    "BiasCorrectionConfig",
    "CLEConfig",
    "CalibMethod",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Config",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Float16Spec",
    "Int8Spec",
    "Int16Method",
    "Int16Spec",
    "Int32Spec",
    "LayerWiseMethod",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8Spec",
    "ModelQuantizer",
    "PowerOfTwoMethod",
    "QConfig",
    "QLayerConfig",
    "QuantFormat",
    "QuantGranularity",
    "QuantType",
    "QuantizationConfig",
    "ScaleType",
    "SmoothQuantConfig",
    "Spec",
    "UInt8Spec",
    "UInt16Spec",
    "UInt32Spec",
    "VitisQuantFormat",
    "VitisQuantType",
    "XInt8Spec",
    "get_default_config",
]

# Names of steps that do not exist here, and why: importing one says so.
_NO_STEP = {
    "GPTQConfig": "weight-only quantization has recipes of its own",
    "QuarotConfig": "there is no rotation of weights yet",
    "AutoMixprecisionConfig": (
        "bitwright.find_sensitivity says which nodes to put back to 16 bits or float"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _NO_STEP:
        raise RecipeError(f"{name} is not supported: {_NO_STEP[name]}.")
    return _load(name)


_load = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
