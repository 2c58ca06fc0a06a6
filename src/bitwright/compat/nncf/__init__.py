"""The names of NNCF that its quantization with accuracy control takes, for ONNX models."""

from __future__ import annotations

from bitwright.compat.nncf.accuracy_control import quantize_with_accuracy_control
from bitwright.compat.nncf.dataset import Dataset
from bitwright.compat.nncf.parameters import (
    DropType,
    IgnoredScope,
    ModelType,
    QuantizationPreset,
    Subgraph,
    TargetDevice,
    ValidationError,
)

__all__ = [
    "Dataset",
    "DropType",
    "IgnoredScope",
    "ModelType",
    "QuantizationPreset",
    "Subgraph",
    "TargetDevice",
    "ValidationError",
    "quantize_with_accuracy_control",
]
