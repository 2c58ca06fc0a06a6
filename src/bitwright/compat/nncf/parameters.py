"""`nncf.parameters`: kinds of drops, of models, of devices and of number formats, by name."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["DropType", "ModelType", "QuantizationMode", "TargetDevice"]


class DropType(StrEnum):
    """Whether a drop is in the metric's own units, or a share of the float model's metric."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"


class ModelType(StrEnum):
    """What kind of model it is."""

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
