"""Which tensors and nodes are quantized: static, dynamic, weight-only and trained models."""
