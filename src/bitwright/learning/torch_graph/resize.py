"""Resize: nearest and linear, one axis after the other, by ONNX's own formulas."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.numerics import COORDINATES, ROUNDINGS, along_axis, coordinates


def refuse_resize(node: ir.Node) -> str | None:
    """Return why a Resize cannot be computed here, if so."""
    a = Attributes(node, 0)
    if a.text("mode", "nearest") not in ("nearest", "linear"):
        return f"Resize has the mode {a.text('mode')}"
    if a.text("coordinate_transformation_mode", "half_pixel") not in COORDINATES:
        return f"Resize has coordinates of {a.text('coordinate_transformation_mode')}"
    if a.integer("antialias"):
        return "Resize smooths (antialias)"
    if a.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "Resize keeps the aspect ratio"
    return None


def resize(
    a: Attributes,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Resize by scales or to sizes."""
    if a.opset == 10:  # (X, scales), and coordinates as they were then
        scales = roi
    axes = [axis % x.ndim for axis in a.integers("axes")] or list(range(x.ndim))
    old_way = a.opset == 10 or a.op_type == "Upsample"
    mode = a.text("coordinate_transformation_mode", "asymmetric" if old_way else "half_pixel")
    for i, axis in enumerate(axes):
        size = x.shape[axis]
        if sizes is not None and sizes.numel():
            wanted = int(sizes[i])
            scale = wanted / size
        else:
            assert scales is not None
            scale = float(scales[i])
            wanted = int(np.floor(size * scale))
        if wanted != size or scale != 1:
            # In float32, as the runtime does: which way a tie falls depends on it. A Python number
            # as the scale keeps arrays in float32.
            scale = float(np.float32(scale))
            places = coordinates(size, wanted, scale, mode, np.float32)
            x = _sample(x, axis, places, a, old_way)
    return x


def _sample(x: Tensor, axis: int, places: np.ndarray, a: Attributes, old_way: bool) -> Tensor:
    last = x.shape[axis] - 1
    if a.text("mode", "nearest") == "nearest":
        rounding = a.text("nearest_mode", "floor" if old_way else "round_prefer_floor")
        nearest = np.clip(ROUNDINGS[rounding](places), 0, last).astype(np.int64)
        return x.index_select(axis, torch.from_numpy(nearest).to(x.device))
    places = np.clip(places, 0, last)
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, last)
    share = torch.from_numpy(places - low).to(x.device, x.dtype)
    share = along_axis(share, axis, x.ndim)
    first, second = (x.index_select(axis, torch.from_numpy(p).to(x.device)) for p in (low, high))
    return first * (1 - share) + second * share
