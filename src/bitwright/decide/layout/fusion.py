"""Operators that the NPU computes as one, so that no Q/DQ pair stands between them."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.graph.constants import maker_of
from bitwright.recipe import Recipe
from bitwright.targets.npu_operations import (
    FUSED_PRODUCERS,
    PADDED_POOLS,
    clip_bounds,
    is_simulation,
    only_reader,
)

# A hardware Relu stops at 6 or 1 for free; at no other number.
_FREE_CLIPS = ((0.0, 6.0), (0.0, 1.0))


def fused_reader(value: ir.Value, recipe: Recipe) -> ir.Node | None:
    """Return the node that is computed together with the one that makes this value, if any is."""
    reader, maker = only_reader(value), value.producer()
    if reader is None or maker is None or reader.graph is not maker.graph:
        return None
    if is_simulation(reader):
        return reader
    if recipe.limits is not None and maker.op_type == "Pad" and reader.op_type in PADDED_POOLS:
        return reader
    if (maker.op_type, reader.op_type) in recipe.emulate.fuse_pairs:
        return reader
    if reader.op_type not in recipe.place.fuse_activations or reader.inputs[0] is not value:
        return None
    if is_simulation(maker):
        maker = maker_of(maker.inputs[0])
    if maker is None or maker.op_type not in FUSED_PRODUCERS:
        return None
    if reader.op_type == "Clip" and clip_bounds(reader) not in _FREE_CLIPS:
        return None
    return reader
