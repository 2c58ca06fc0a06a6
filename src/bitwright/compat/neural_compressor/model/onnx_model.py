"""`neural_compressor.model.onnx_model`."""

from bitwright.compat.model_wrapper import ONNXModel as ONNXModel
