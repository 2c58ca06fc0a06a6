"""`quark.onnx.quant_utils`: the enumerations, and the path of the operator library."""

from bitwright.compat.onnxruntime.enums import QuantizationMode
from bitwright.compat.quark.library import get_library_path
from bitwright.compat.vai_q_onnx.enums import (
    CalibrationDataReader,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantType,
    VitisQuantFormat,
    VitisQuantType,
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
    "QuantizationMode",
    "VitisQuantFormat",
    "VitisQuantType",
    "get_library_path",
]
