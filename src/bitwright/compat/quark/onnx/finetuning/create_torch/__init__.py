"""`quark.onnx.finetuning.create_torch`."""
