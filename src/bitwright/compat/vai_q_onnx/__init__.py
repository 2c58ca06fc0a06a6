"""What `vai_q_onnx` offers, by the same names: change the import line and go on.

>>> import bitwright.compat.vai_q_onnx as vai_q_onnx
>>> vai_q_onnx.PowerOfTwoMethod.MinMSE, vai_q_onnx.VitisQuantFormat.QDQ.value
(<PowerOfTwoMethod.MinMSE: 1>, 2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright._lazy import loader

if TYPE_CHECKING:
    from bitwright.compat.onnxruntime import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quant_pre_process,
        quantize_dynamic,
        shape_inference,
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
    from bitwright.compat.vai_q_onnx.static import quantize_static

_HOMES = {
    "bitwright.compat.onnxruntime": (
        "CalibrationDataReader",
        "CalibrationMethod",
        "QuantFormat",
        "QuantType",
        "quant_pre_process",
        "quantize_dynamic",
        "shape_inference",
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
    "bitwright.compat.vai_q_onnx.static": ("quantize_static",),
}

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
    "quant_pre_process",
    "quantize_dynamic",
    "quantize_static",
    "shape_inference",
]

__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
