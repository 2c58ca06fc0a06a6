"""`nncf.onnx`."""
