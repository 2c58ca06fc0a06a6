"""What `quark.onnx.finetuning.create_torch` offers, by the same names; needs torch."""
