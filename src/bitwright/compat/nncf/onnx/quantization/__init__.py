"""`nncf.onnx.quantization`."""
