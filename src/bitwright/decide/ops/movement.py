"""Operators that move values without computing: their outputs keep the input's scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.elementwise import refuse_sentinels
from bitwright.decide.ops.rule import OpRule
from bitwright.graph.constants import constant_of


def _pads_with_zero(node: ir.Node) -> bool:
    """Zero is always representable, so padding with it needs no range of its own."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return True
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return node.attributes.get_float("value", 0.0) == 0  # an attribute, before opset 11
    value = constant_of(node.inputs[2])
    return value is not None and bool(np.all(value == 0))


def _interpolates_inside(node: ir.Node) -> bool:
    """Cubic interpolation overshoots its input's range; nearest and linear do not."""
    return node.attributes.get_string("mode", "nearest") != "cubic"


def _movement(op_type: str, **facts: Any) -> OpRule:
    """An operator whose integer form is itself, as it takes whatever type it is given."""
    common = {
        "moves": True,
        "data": (0,),
        "outputs": (0,),
        "keeps_scale": True,
        "needs_quantized_input": True,
        "integer_op": op_type,
    }
    return OpRule(op_type, **{**common, **facts})


MOVEMENT_RULES = (
    _movement("Reshape", reshapes=True, drops_pairs=True),
    _movement("Transpose", reshapes=True, drops_pairs=True, dynamic_op="Transpose"),
    _movement("Squeeze", reshapes=True, drops_pairs=True),
    _movement("Unsqueeze", reshapes=True, drops_pairs=True),
    _movement("Flatten", reshapes=True, drops_pairs=True),
    _movement("DepthToSpace", by_default=False, drops_pairs=True),
    _movement("SpaceToDepth", by_default=False),
    _movement("Slice", drops_pairs=True),
    _movement("Split", outputs=None, drops_pairs=True),
    _movement("Gather", dynamic_op="Gather", block_op="GatherBlockQuantized", drops_pairs=True),
    _movement("GatherElements", drops_pairs=True),
    _movement("Expand", quantizable=False, integer_op=None, drops_pairs=True),
    _movement("Tile", quantizable=False, integer_op=None, drops_pairs=True),
    _movement(
        "Identity", elementwise="unary", homogeneous=True, quantizable=False, integer_op=None
    ),
    # Its inputs have a scale each, and its output another.
    OpRule(
        "Concat",
        moves=True,
        needs_all_inputs_quantized=True,
        refuse=refuse_sentinels,
        integer_op="QLinearConcat",
        float32_scales="fused",
    ),
    # They choose values by comparing, fill in zeros, or stay within their input's range.
    _movement("TopK", moves=False),
    # Before opset 12 MaxPool takes no 8-bit input, and the runtime cannot drop the pair.
    _movement("MaxPool", moves=False, pool=True, min_opset=12, drops_pairs=True),
    _movement("Pad", moves=False, keeps_scale=_pads_with_zero, min_opset=11),
    _movement(
        "Resize",
        moves=False,
        keeps_scale=_interpolates_inside,
        min_opset=11,
        float32_scales="fused",
        drops_pairs=True,
    ),
)
