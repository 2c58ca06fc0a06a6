"""Operators that move values without changing them, or compute shapes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from bitwright.learning.torch_graph.attributes import Attributes

Tensors = tuple[Tensor, ...]


def as_tensor(array: Any, device: str | torch.device = "cpu") -> Tensor:
    """Return an array as a tensor; only floats go to the device, as integers say shapes.

    >>> as_tensor(np.float32([1, 2]))
    tensor([1., 2.])
    """
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(device, torch.bfloat16)
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(device) if tensor.is_floating_point() else tensor


def torch_type(onnx_type: int) -> torch.dtype:
    """Return the type that ONNX has this number for."""
    return as_tensor(np.zeros((), ir.DataType(onnx_type).numpy())).dtype


def reshape(a: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    """Reshape: 0 keeps a dimension, -1 is what is left."""
    wanted = shape.tolist()
    if not a.integer("allowzero"):
        wanted = [x.shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    return x.reshape(wanted)


def flatten(a: Attributes, x: Tensor) -> Tensor:
    """Flatten, always to a matrix."""
    axis = a.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, int(np.prod(x.shape[axis:], dtype=np.int64)))


def squeeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Squeeze."""
    given = a.integers("axes") if axes is None else axes.tolist()
    return x.squeeze(tuple(given)) if given else x.squeeze()


def unsqueeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Unsqueeze; axes are those of the result."""
    given = a.integers("axes") if axes is None else axes.reshape(-1).tolist()
    rank = x.ndim + len(given)
    for axis in sorted(axis % rank for axis in given):
        x = x.unsqueeze(axis)
    return x


def split(a: Attributes, x: Tensor, sizes: Tensor | None = None) -> Tensors:
    """Split, into given sizes or equal parts, the last of which may be smaller."""
    axis = a.integer("axis")
    given = a.integers("split") if sizes is None else sizes.tolist()
    if not given:
        parts = a.integer("num_outputs", a.outputs)
        given = -(-x.shape[axis] // parts)
    return tuple(torch.split(x, given, axis))


def slice_(
    a: Attributes,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """Slice; negative steps run backwards."""
    first, last = (
        a.integers(name) if given is None else given.tolist()
        for name, given in (("starts", starts), ("ends", ends))
    )
    along = (a.integers("axes") or range(len(first))) if axes is None else axes.tolist()
    by = [1] * len(first) if steps is None else steps.tolist()
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        size = x.shape[axis]
        # As ONNX counts: beyond the ends means at them; going back, -1 is before the first.
        if step > 0:
            places = range(*slice(start, end, step).indices(size))
            x = x.narrow(axis, places.start, max(places.stop - places.start, 0))
            if step > 1:
                kept = torch.arange(0, x.shape[axis], step, device=x.device)
                x = x.index_select(axis, kept)
        else:
            stop = None if end < -size else end
            places = range(*slice(start, stop, step).indices(size))
            x = x.index_select(axis, torch.tensor(list(places), device=x.device, dtype=torch.int64))
    return x


def gather(a: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    """Gather: negative indices count from the end."""
    axis = a.integer("axis") % x.ndim
    places = indices.to(x.device, torch.int64)
    places = torch.where(places < 0, places + x.shape[axis], places)
    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    return x.index_select(axis, places.reshape(-1)).reshape(shape)


def pad(
    a: Attributes,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    """Pad with a constant, the edge, or a reflection; negative pads cut off."""
    given = a.integers("pads") if pads is None else pads.tolist()
    along = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes.tolist()]
    half = len(given) // 2
    begins, ends = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(along):
        begins[axis], ends[axis] = given[i], given[half + i]
    mode = a.text("mode", "constant")
    if mode == "constant":
        fill = a.number("value") if value is None else value.item()
        pairs = zip(reversed(begins), reversed(ends), strict=True)
        return functional.pad(x, list(itertools.chain(*pairs)), value=fill)
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin or end:
            places = np.pad(np.arange(x.shape[axis]), (begin, end), mode=_PAD_MODES[mode])
            x = x.index_select(axis, torch.from_numpy(places).to(x.device))
    return x


_PAD_MODES: dict[str, Any] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def depth_to_space(a: Attributes, x: Tensor) -> Tensor:
    """DepthToSpace."""
    n, c, h, w = x.shape
    block = a.integer("blocksize")
    if a.text("mode", "DCR") == "DCR":
        split_up = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        split_up = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return split_up.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(a: Attributes, x: Tensor) -> Tensor:
    """SpaceToDepth."""
    n, c, h, w = x.shape
    block = a.integer("blocksize")
    split_up = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return split_up.reshape(n, c * block**2, h // block, w // block)


def range_(a: Attributes, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Range."""
    ends = (one.item() for one in (start, limit, delta))
    return torch.arange(*ends, dtype=start.dtype, device=start.device)


def where(a: Attributes, mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Where."""
    device = x.device if x.is_floating_point() else mask.device
    return torch.where(mask.to(device), x, y.to(device))


def shape_of(a: Attributes, x: Tensor) -> Tensor:
    """Shape, which is always an integer tensor in main memory."""
    sizes = list(x.shape)[a.integer("start") : a.value("end")]
    return torch.tensor(sizes, dtype=torch.int64)


def constant_of_shape(a: Attributes, shape: Tensor) -> Tensor:
    """ConstantOfShape."""
    given = a.value("value")
    fill = torch.zeros(1) if given is None else as_tensor(given.numpy())
    return fill.reshape(()).expand(tuple(shape.tolist())).clone()
