"""A small executor of ONNX graphs in torch, for segments that learn (needs torch)."""
