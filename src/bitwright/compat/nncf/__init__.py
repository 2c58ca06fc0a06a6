"""The names of NNCF for quantizing ONNX models, with accuracy control and without.

Modules have the paths that they have there, below this package.
"""

from __future__ import annotations

from bitwright.compat.nncf.common.quantization.structs import QuantizationPreset
from bitwright.compat.nncf.data import Dataset
from bitwright.compat.nncf.errors import ParameterNotSupportedError, ValidationError
from bitwright.compat.nncf.parameters import (
    BackupMode,
    CompressionFormat,
    CompressWeightsMode,
    DropType,
    ModelType,
    QuantizationMode,
    SensitivityMetric,
    TargetDevice,
)
from bitwright.compat.nncf.quantization import (
    compress_weights,
    quantize,
    quantize_with_accuracy_control,
)
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedAWQParameters,
    AdvancedBiasCorrectionParameters,
    AdvancedCompressionParameters,
    AdvancedGPTQParameters,
    AdvancedQuantizationParameters,
    AdvancedScaleEstimationParameters,
    AdvancedSmoothQuantParameters,
    GroupSizeFallbackMode,
    OverflowFix,
)
from bitwright.compat.nncf.scopes import IgnoredScope, Subgraph

__all__ = [
    "AdvancedAWQParameters",
    "AdvancedBiasCorrectionParameters",
    "AdvancedCompressionParameters",
    "AdvancedGPTQParameters",
    "AdvancedQuantizationParameters",
    "AdvancedScaleEstimationParameters",
    "AdvancedSmoothQuantParameters",
    "BackupMode",
    "CompressWeightsMode",
    "CompressionFormat",
    "Dataset",
    "DropType",
    "GroupSizeFallbackMode",
    "IgnoredScope",
    "ModelType",
    "OverflowFix",
    "ParameterNotSupportedError",
    "QuantizationMode",
    "QuantizationPreset",
    "SensitivityMetric",
    "Subgraph",
    "TargetDevice",
    "ValidationError",
    "compress_weights",
    "quantize",
    "quantize_with_accuracy_control",
]
