"""What `onnxruntime.quantization` offers, by the same names: change the import line and go on.

>>> from bitwright.compat.onnxruntime import QuantType, quantize_static
>>> QuantType.QInt8.value
0
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bitwright._lazy import loader

if TYPE_CHECKING:
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

_HOMES = {
    "bitwright.compat.onnxruntime.calibrate": (
        "CalibraterBase",
        "MinMaxCalibrater",
        "create_calibrator",
    ),
    "bitwright.compat.onnxruntime.dynamic": ("quantize_dynamic",),
    "bitwright.compat.onnxruntime.enums": (
        "CalibrationMethod",
        "QuantFormat",
        "QuantizationMode",
        "QuantType",
    ),
    "bitwright.compat.onnxruntime.qat": ("quantize_qat",),
    "bitwright.compat.onnxruntime.quantize": (
        "DynamicQuantConfig",
        "StaticQuantConfig",
        "get_qdq_config",
        "quantize",
    ),
    "bitwright.compat.onnxruntime.quantizers": ("QDQQuantizer",),
    "bitwright.compat.onnxruntime.readers": ("CalibrationDataReader",),
    "bitwright.compat.onnxruntime.shape_inference": ("quant_pre_process",),
    "bitwright.compat.onnxruntime.static": ("quantize_static",),
    "bitwright.compat.onnxruntime.tensors_data": (
        "TensorData",
        "TensorsData",
        "load_tensors_data",
        "save_tensors_data",
        "write_calibration_table",
    ),
}

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

__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """A package in which `quantize` is the function, as in the runtime, not the module of it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "quantize" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
