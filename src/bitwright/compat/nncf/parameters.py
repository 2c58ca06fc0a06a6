"""Choices by name: kinds of drops, of models, of devices, of number formats, of symmetry."""

from __future__ import annotations

from enum import StrEnum


class BackupMode(StrEnum):
    """The number format of weights that do not get the low bits of the others."""

    NONE = "none"
    INT8_SYM = "int8_sym"
    INT8_ASYM = "int8_asym"
    MXFP8_E4M3 = "mxfp8_e4m3"
    FP8_E4M3 = "fp8_e4m3"


class CompressWeightsMode(StrEnum):
    """The number format of compressed weights."""

    INT8_SYM = "int8_sym"
    INT8_ASYM = "int8_asym"
    INT4_SYM = "int4_sym"
    INT4_ASYM = "int4_asym"
    INT3_SYM = "int3_sym"
    INT2_SYM = "int2_sym"
    NF4 = "nf4"
    CB4 = "cb4"
    MXFP4 = "mxfp4"
    MXFP8_E4M3 = "mxfp8_e4m3"
    FP8_E4M3 = "fp8_e4m3"
    FP4 = "fp4"
    NVFP4 = "nvfp4"
    CODEBOOK = "codebook"
    ADAPTIVE_CODEBOOK = "adaptive_codebook"


class CompressionFormat(StrEnum):
    """How compressed weights are stored."""

    DQ = "dequantize"
    FQ = "fake_quantize"
    FQ_LORA = "fake_quantize_with_lora"
    FQ_LORA_NLS = "fake_quantize_with_lora_nls"


class SensitivityMetric(StrEnum):
    """The metric that ranks weights by their sensitivity to low bits."""

    WEIGHT_QUANTIZATION_ERROR = "weight_quantization_error"
    HESSIAN_INPUT_ACTIVATION = "hessian_input_activation"
    MEAN_ACTIVATION_VARIANCE = "mean_activation_variance"
    MAX_ACTIVATION_VARIANCE = "max_activation_variance"
    MEAN_ACTIVATION_MAGNITUDE = "mean_activation_magnitude"


class DropType(StrEnum):
    """Whether a drop is in the metric's own units, or a share of the float model's metric."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"


class ModelType(StrEnum):
    """The kind of model."""

    TRANSFORMER = "transformer"


class QuantizationMode(StrEnum):
    """Eight-bit floats in place of integers."""

    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class TargetDevice(StrEnum):
    """Where the model is to run."""

    ANY = "ANY"
    CPU = "CPU"
    GPU = "GPU"
    NPU = "NPU"
    CPU_SPR = "CPU_SPR"


class QuantizationPreset(StrEnum):
    """Symmetric activations, or asymmetric ones; weights are symmetric in both."""

    PERFORMANCE = "performance"
    MIXED = "mixed"


class QuantizationScheme(StrEnum):
    """Whether zero lies in the middle of the integers, or where the range puts it."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"


class BackendParameters:
    """The options that ONNX models alone have."""

    COMPRESS_WEIGHTS = "compress_weights"
    """False: weights stay float, with a pair behind each."""
    EXTERNAL_DATA_DIR = "external_data_dir"
    """The folder with the tensors of a model that was loaded without them."""
