"""Set `nearest_mode` of Resize to floor where that picks the same values.

Enlarged by a whole factor s, output i is input floor(i / s): half_pixel with either rounding says
the same as asymmetric with floor, since (i + 1/2) / s - 1/2 is less than half a step from it.
Hardware that only has floor then computes the same. Whether it does is looked up for each output.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.graph import constant_of, input_at, static_shape
from bitwright.numerics.resizing import COORDINATES, ROUNDINGS, coordinates
from bitwright.prepare.passes import Scope, rewrites
from bitwright.support.array_types import Array


@rewrites("Resize", since=11)
def nearest_to_floor(resize: ir.Node, names: Scope) -> bool | str:
    """Give each Resize to the nearest value the mode floor, where it is the same one."""
    attributes = resize.attributes
    nearest = attributes.get_string("nearest_mode", "round_prefer_floor")
    mode = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if attributes.get_string("mode", "nearest") != "nearest" or nearest == "floor":
        return False
    if (nearest, mode) == ("round_prefer_ceil", "align_corners"):
        return False  # hardware has this one as well
    source = resize.inputs[0]
    before = None if source is None else static_shape(source)
    after = static_shape(resize.outputs[0])
    scales = constant_of(input_at(resize, 2))
    if before is None or after is None or nearest not in ROUNDINGS:
        return f"Resize {resize.name!r} keeps the mode {nearest}: its sizes are not known"
    if "axes" in attributes or (scales is not None and scales.size not in (0, len(before))):
        return f"Resize {resize.name!r} keeps the mode {nearest}: it names its axes"
    factors = [b / a for a, b in zip(before, after, strict=True)]
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales]
    for size, length, factor in zip(before, after, factors, strict=True):
        given = _indices(size, length, factor, nearest, mode)
        floor = _indices(size, length, factor, "floor", "asymmetric")
        if mode not in COORDINATES or not np.array_equal(given, floor):
            return f"Resize {resize.name!r} keeps the mode {nearest}: floor takes other values"
    resize.attributes.add(ir.AttrString("nearest_mode", "floor"))
    resize.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    return True


def _indices(size: int, length: int, factor: float, nearest: str, mode: str) -> Array:
    """Return which input each output along an axis is."""
    return np.clip(ROUNDINGS[nearest](coordinates(size, length, factor, mode)), 0, size - 1)
