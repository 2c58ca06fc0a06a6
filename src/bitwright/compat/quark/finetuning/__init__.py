"""What `quark.onnx.finetuning` offers, by the same names; needs torch."""
