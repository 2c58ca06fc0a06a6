"""What `onnxruntime.quantization` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.onnxruntime import QuantType, quantize_static
>>> QuantType.QInt8.value
0
"""

from __future__ import annotations

from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType
from bitwright.compat.onnxruntime.qat import quantize_qat
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.onnxruntime.shape_inference import quant_pre_process
from bitwright.compat.onnxruntime.static import quantize_static

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "QuantFormat",
    "QuantType",
    "quant_pre_process",
    "quantize_dynamic",
    "quantize_qat",
    "quantize_static",
]
