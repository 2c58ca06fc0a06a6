"""The names of Intel Neural Compressor's weight-only module for ONNX models."""

from __future__ import annotations

from bitwright.compat.model_wrapper import ONNXModel

__all__ = ["ONNXModel"]
