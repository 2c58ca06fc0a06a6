"""Comparison of a float and a quantized model, tensor by tensor and node by node."""
