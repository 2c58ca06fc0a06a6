"""`quark.onnx.quantization`: the quantizer and its configurations."""
