"""Equalization: cross-layer equalization, SmoothQuant and AWQ scaling; the function stays."""

from __future__ import annotations

from bitwright.equalize.awq import CLIPPED, awq_clip, awq_scales, awq_shrink
from bitwright.equalize.cle import Equalized, equalize_layers
from bitwright.equalize.cle_chains import find_chains
from bitwright.equalize.smoothquant import apply_smoothing, find_smoothing_points, smoothing_for

__all__ = [
    "CLIPPED",
    "Equalized",
    "apply_smoothing",
    "awq_clip",
    "awq_scales",
    "awq_shrink",
    "equalize_layers",
    "find_chains",
    "find_smoothing_points",
    "smoothing_for",
]
