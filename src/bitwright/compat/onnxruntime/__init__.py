"""What `onnxruntime.quantization` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.onnxruntime import QuantType, quantize_static
>>> QuantType.QInt8.value
0
"""

from __future__ import annotations

from bitwright.compat.onnxruntime.calibrate import (
    CalibraterBase,
    MinMaxCalibrater,
    create_calibrator,
)
from bitwright.compat.onnxruntime.dynamic import quantize_dynamic
from bitwright.compat.onnxruntime.enums import (
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
)
from bitwright.compat.onnxruntime.qat import quantize_qat
from bitwright.compat.onnxruntime.quantize import (
    DynamicQuantConfig,
    StaticQuantConfig,
    get_qdq_config,
    quantize,
)
from bitwright.compat.onnxruntime.quantizers import QDQQuantizer
from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.onnxruntime.shape_inference import quant_pre_process
from bitwright.compat.onnxruntime.static import quantize_static
from bitwright.compat.onnxruntime.tensors_data import (
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
    write_calibration_table,
)

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "MinMaxCalibrater",
    "QDQQuantizer",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_qat",
    "quantize_static",
    "save_tensors_data",
    "write_calibration_table",
]
