"""Choices by name: kinds of drops, of models, of devices, of number formats, of symmetry."""

from __future__ import annotations

from enum import StrEnum

BackupMode = StrEnum(
    "BackupMode",
    "NONE INT8_SYM INT8_ASYM MXFP8_E4M3 FP8_E4M3",
)
BackupMode.__doc__ = "The number format of weights that do not get the low bits of the others."

CompressWeightsMode = StrEnum(
    "CompressWeightsMode",
    "INT8_SYM INT8_ASYM INT4_SYM INT4_ASYM INT3_SYM INT2_SYM NF4 CB4 MXFP4 MXFP8_E4M3 "
    "FP8_E4M3 FP4 NVFP4 CODEBOOK ADAPTIVE_CODEBOOK",
)
CompressWeightsMode.__doc__ = "The number format of compressed weights."


class CompressionFormat(StrEnum):
    """How compressed weights are stored."""

    DQ = "dequantize"
    FQ = "fake_quantize"
    FQ_LORA = "fake_quantize_with_lora"
    FQ_LORA_NLS = "fake_quantize_with_lora_nls"


SensitivityMetric = StrEnum(
    "SensitivityMetric",
    "WEIGHT_QUANTIZATION_ERROR HESSIAN_INPUT_ACTIVATION MEAN_ACTIVATION_VARIANCE "
    "MAX_ACTIVATION_VARIANCE MEAN_ACTIVATION_MAGNITUDE",
)
SensitivityMetric.__doc__ = "The metric that ranks weights by their sensitivity to low bits."

DropType = StrEnum("DropType", "ABSOLUTE RELATIVE")
DropType.__doc__ = (
    "Whether a drop is in the metric's own units, or a share of the float model's metric."
)

ModelType = StrEnum("ModelType", "TRANSFORMER")
ModelType.__doc__ = "The kind of model."

QuantizationMode = StrEnum("QuantizationMode", "FP8_E4M3 FP8_E5M2")
QuantizationMode.__doc__ = "Eight-bit floats in place of integers."


class TargetDevice(StrEnum):
    """Where the model is to run."""

    ANY = "ANY"
    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"
    CPU_SPR = "CPU_SPR"


QuantizationPreset = StrEnum("QuantizationPreset", "PERFORMANCE MIXED")
QuantizationPreset.__doc__ = (
    "Symmetric activations, or asymmetric ones; weights are symmetric in both."
)

QuantizationScheme = StrEnum("QuantizationScheme", "SYMMETRIC ASYMMETRIC")
QuantizationScheme.__doc__ = (
    "Whether zero lies in the middle of the integers, or where the range puts it."
)


class BackendParameters:
    """The options that ONNX models alone have."""

    COMPRESS_WEIGHTS = "compress_weights"
    """False: weights stay float, with a pair behind each."""
    EXTERNAL_DATA_DIR = "external_data_dir"
    """The folder with the tensors of a model that was loaded without them."""
