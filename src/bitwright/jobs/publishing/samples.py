"""Random samples of the kind that a model reads: tokens of its vocabulary, images, features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bitwright.data import InputSpec, Sample
from bitwright.data.token_inputs import Heads, Window, find_maker, fixed_length
from bitwright.errors import DataError
from bitwright.graph import float_constant_of
from bitwright.jobs.calibration import GIVE_DATA
from bitwright.support.array_types import Array
from bitwright.support.input_limits import check_limit

SEED = 0
TOKENS = 32
"""Tokens of a sample where the model leaves that open."""
_SIDE = 224
"""Height and width of an image, where they are open."""


def draw_samples(
    model: ir.Model, specs: Sequence[InputSpec], *, count: int, folder: Path | None = None
) -> list[Sample]:
    """Return random samples for a model; `folder` may have its configuration."""
    generator = np.random.default_rng(SEED)
    length, words = fixed_length(specs) or TOKENS, _vocabulary(model)
    heads = Heads() if folder is None else Heads.read_beside(folder)
    windows = (Window(generator.integers(0, words, (1, length)), {}, heads) for _ in range(count))
    return [{spec.name: _fill(spec, window, generator) for spec in specs} for window in windows]


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
    rank = len(spec.shape)
    shape = tuple(_size(dim, axis, rank, window) for axis, dim in enumerate(spec.shape))
    check_limit("elements", int(np.prod(shape)), f"input {spec}", DataError)
    if kind in "iub":
        return generator.integers(0, 2, shape).astype(spec.dtype)
    return generator.standard_normal(shape, np.float32).astype(spec.dtype)


def _size(dim: int | str | None, axis: int, rank: int, window: Window) -> int:
    """Return the size of a dimension; of an open one by its name and place."""
    if axis == 0 or isinstance(dim, int) or "batch" in (dim or ""):
        return dim if isinstance(dim, int) else 1
    return _SIDE if rank == 4 and axis > 1 else window.length
