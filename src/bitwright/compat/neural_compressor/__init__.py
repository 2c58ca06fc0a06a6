"""The names of Intel Neural Compressor for quantizing ONNX models.

Modules have the paths that they have there, and in ONNX Neural Compressor, below this package.
"""

from __future__ import annotations

from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.neural_compressor.config import PostTrainingQuantConfig
from bitwright.compat.neural_compressor.metric import Metric

__all__ = ["Metric", "ONNXModel", "PostTrainingQuantConfig"]
