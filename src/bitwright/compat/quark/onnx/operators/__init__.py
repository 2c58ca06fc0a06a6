"""`quark.onnx.operators`."""
