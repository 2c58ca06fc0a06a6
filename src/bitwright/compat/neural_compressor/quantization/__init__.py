"""`neural_compressor.quantization`, and `onnx_neural_compressor.quantization`."""

from bitwright.compat.neural_compressor.quantization.fitting import fit
from bitwright.compat.neural_compressor.quantization.post_training import quantize
from bitwright.compat.onnxruntime.enums import CalibrationMethod, QuantFormat, QuantType

__all__ = ["CalibrationMethod", "QuantFormat", "QuantType", "fit", "quantize"]
