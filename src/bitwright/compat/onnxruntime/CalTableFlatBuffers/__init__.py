"""Tables of ranges for TensorRT, as `onnxruntime.quantization.CalTableFlatBuffers`."""
