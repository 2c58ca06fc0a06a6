"""The types of `quark.onnx` that are those of `vai_q_onnx` and of ONNX Runtime."""

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
from bitwright.compat.vai_q_onnx.runtime_types import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
)

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Int16Method",
    "LayerWiseMethod",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "VitisQuantFormat",
    "VitisQuantType",
]
