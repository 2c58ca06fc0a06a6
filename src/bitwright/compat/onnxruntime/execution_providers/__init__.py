"""Configurations for execution providers, as `onnxruntime.quantization.execution_providers`."""
