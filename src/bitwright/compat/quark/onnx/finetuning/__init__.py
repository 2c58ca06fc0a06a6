"""`quark.onnx.finetuning`."""
