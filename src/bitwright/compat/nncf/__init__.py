"""The names of NNCF for quantizing ONNX models, with accuracy control and without.

Modules have the paths that they have there, below this package.
"""

from __future__ import annotations

from bitwright.compat.nncf.common.quantization.structs import QuantizationPreset
from bitwright.compat.nncf.data import Dataset
from bitwright.compat.nncf.errors import ParameterNotSupportedError, ValidationError
from bitwright.compat.nncf.parameters import DropType, ModelType, QuantizationMode, TargetDevice
from bitwright.compat.nncf.quantization import quantize, quantize_with_accuracy_control
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedBiasCorrectionParameters,
    AdvancedQuantizationParameters,
    AdvancedSmoothQuantParameters,
    OverflowFix,
)
from bitwright.compat.nncf.scopes import IgnoredScope, Subgraph

__all__ = [
    "AdvancedBiasCorrectionParameters",
    "AdvancedQuantizationParameters",
    "AdvancedSmoothQuantParameters",
    "Dataset",
    "DropType",
    "IgnoredScope",
    "ModelType",
    "OverflowFix",
    "ParameterNotSupportedError",
    "QuantizationMode",
    "QuantizationPreset",
    "Subgraph",
    "TargetDevice",
    "ValidationError",
    "quantize",
    "quantize_with_accuracy_control",
]
