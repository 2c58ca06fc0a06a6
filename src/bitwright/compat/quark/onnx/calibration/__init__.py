"""`quark.onnx.calibration`: readers and methods."""

from bitwright.compat.quark.auto_search import (
    create_calibrator_float_scale,
    create_calibrator_power_of_two,
)
from bitwright.compat.quark.data_readers import (
    CachedDataReader,
    PathDataReader,
    RandomDataReader,
)
from bitwright.compat.vai_q_onnx.enums import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

__all__ = [
    "CachedDataReader",
    "ExtendedCalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
]
