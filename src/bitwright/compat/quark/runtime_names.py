"""Names of ONNX Runtime's tool that `quark.onnx` has too."""

from bitwright.compat.onnxruntime.calibrate import CalibraterBase, MinMaxCalibrater
from bitwright.compat.onnxruntime.enums import QuantizationMode
from bitwright.compat.onnxruntime.quant_utils import write_calibration_table

__all__ = ["CalibraterBase", "MinMaxCalibrater", "QuantizationMode", "write_calibration_table"]
