"""Random samples of the kind that a model reads: tokens of its vocabulary, images, features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bitwright.data import Heads, InputSpec, Sample, Window, find_maker, fixed_length
from bitwright.errors import DataError
from bitwright.graph import float_constant_of
from bitwright.jobs.calibration import GIVE_DATA
from bitwright.support import Array, check_limit, read_object

SEED = 0
TOKENS = 32
"""Tokens of a sample where the model leaves that open."""
_SIDE, _CHANNELS = 224, 3
"""Of an image, where the model and its configuration leave them open."""


def draw_samples(
    model: ir.Model, specs: Sequence[InputSpec], *, count: int, folder: Path | None = None
) -> list[Sample]:
    """Return random samples for a model; `folder` may have its configuration."""
    generator = np.random.default_rng(SEED)
    length, words = fixed_length(specs) or TOKENS, _vocabulary(model)
    heads = Heads() if folder is None else Heads.read_beside(folder)
    side = _SIDE if folder is None else _read_side(folder)
    specs = [_with_sizes(spec, model, side) for spec in specs]
    windows = (Window(generator.integers(0, words, (1, length)), {}, heads) for _ in range(count))
    return [{spec.name: _fill(spec, window, generator) for spec in specs} for window in windows]


def _read_side(folder: Path) -> int:
    """Return the size of the images that the configuration in a folder names."""
    found = read_object(folder / "config.json")
    for section in (found, found.get("vision_config")):
        for key in ("image_size", "sample_size"):
            size = section.get(key) if isinstance(section, dict) else None
            size = size[0] if isinstance(size, list) and size else size
            if isinstance(size, int):
                return size
    return _SIDE


def _with_sizes(spec: InputSpec, model: ir.Model, side: int) -> InputSpec:
    """Give an image the channels that convolutions take of it, and its size."""
    if spec.shape is None or len(spec.shape) != 4 or find_maker(spec.name) is not None:
        return spec
    value = next(value for value in model.graph.inputs if value.name == spec.name)
    layers = [use.node for use in value.uses() if use.node.op_type == "Conv" and not use.idx]
    taken = (
        weight.shape[1] * node.attributes.get_int("group", 1)
        for node in layers
        if (weight := float_constant_of(node.inputs[1])) is not None
    )
    usual = (1, next(taken, _CHANNELS), side, side)
    shape = (
        dim if isinstance(dim, int) else size for dim, size in zip(spec.shape, usual, strict=True)
    )
    return replace(spec, shape=tuple(shape))


def _vocabulary(model: ir.Model) -> int:
    """Return how many rows the smallest table has that an input chooses from; 2 without one."""
    sizes = [
        len(table)
        for value in model.graph.inputs
        for use in value.uses()
        if use.node.op_type == "Gather" and use.idx == 1
        if (table := float_constant_of(use.node.inputs[0])) is not None and table.ndim == 2
    ]
    return min(sizes, default=2)


def _fill(spec: InputSpec, window: Window, generator: np.random.Generator) -> Array:
    kind, maker = spec.dtype.kind, find_maker(spec.name)
    if maker is not None and kind != "O":
        return maker(window, spec)
    if kind == "O" or spec.shape is None:
        what = "takes strings" if kind == "O" else "has no shape in the model"
        raise DataError(
            f"input {spec.name!r} {what}, so that no sample can be made up", **GIVE_DATA
        )
    shape = tuple(_size(dim, axis, window) for axis, dim in enumerate(spec.shape))
    check_limit("elements", int(np.prod(shape)), f"input {spec}", DataError)
    if kind in "iub":
        return generator.integers(0, 2, shape).astype(spec.dtype)
    return generator.standard_normal(shape, np.float32).astype(spec.dtype)


def _size(dim: int | str | None, axis: int, window: Window) -> int:
    """Return the size of a dimension; of an open one by its name and place."""
    if axis == 0 or isinstance(dim, int) or "batch" in (dim or ""):
        return dim if isinstance(dim, int) else 1
    return window.length
