"""Resizing along an axis: where each new element lies among the old ones, and which is nearest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bitwright.support.array_types import Array

ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""The `nearest_mode` of ONNX's Resize -> the element that it takes."""
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""The `coordinate_transformation_mode`s that there are formulas for here."""


def coordinates(
    size: int, length: int, scale: float, mode: str, dtype: npt.DTypeLike = np.float64
) -> Array:
    """Return the places of `length` new elements among `size` old ones, not yet clipped to them."""
    index = np.arange(length, dtype=dtype)
    if mode == "asymmetric":
        return index / scale
    if mode == "align_corners":
        return index * (size - 1) / (length - 1) if length > 1 else index * 0
    if mode == "pytorch_half_pixel" and length == 1:
        return index * 0
    return (index + 0.5) / scale - 0.5
