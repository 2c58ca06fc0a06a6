"""The same function with easier numbers: move what is hard to quantize to where it is not."""

from __future__ import annotations

from bitwright.equalize.smoothquant import apply_smoothing, find_smoothing_points, smoothing_for

__all__ = ["apply_smoothing", "find_smoothing_points", "smoothing_for"]
