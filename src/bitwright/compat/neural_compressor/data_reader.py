"""`onnx_neural_compressor.data_reader`."""

from bitwright.compat.onnxruntime.readers import CalibrationDataReader

__all__ = ["CalibrationDataReader"]
