"""The functions of `vai_q_onnx` that are ONNX Runtime's own."""

from bitwright.compat.onnxruntime import quant_pre_process, quantize_dynamic, shape_inference

__all__ = ["quant_pre_process", "quantize_dynamic", "shape_inference"]
