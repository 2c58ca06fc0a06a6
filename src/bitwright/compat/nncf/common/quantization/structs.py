"""`nncf.common.quantization.structs`: presets, and where zero lies."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["QuantizationPreset", "QuantizationScheme"]


class QuantizationPreset(StrEnum):
    """Symmetric activations, or asymmetric ones; weights are symmetric in both."""

    PERFORMANCE = "performance"
    MIXED = "mixed"


class QuantizationScheme(StrEnum):
    """Whether zero lies in the middle of the integers, or where the range puts it."""

    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
