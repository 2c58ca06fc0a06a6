"""The types of `vai_q_onnx` that are ONNX Runtime's own."""

from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.readers import CalibrationDataReader

__all__ = ["CalibrationDataReader", "CalibrationMethod", "QuantFormat", "QuantType"]
