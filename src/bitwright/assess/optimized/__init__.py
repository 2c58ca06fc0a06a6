"""Models as ONNX Runtime optimizes them: nodes that are not fused, float weights it rounds."""
