"""Rules for the ops that move values without computing: their outputs keep the input's scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.rule import OpRule
from bitwright.graph.constants import constant_of

__all__ = ["MOVEMENT_RULES"]


def _pads_with_zero(node: ir.Node) -> bool:
    """Zero is always representable, so padding with it needs no range of its own."""
    mode = node.attributes.get("mode")
    if mode is not None and mode.value != "constant":
        return True
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    value = constant_of(node.inputs[2])
    return value is not None and bool(np.all(value == 0))


def _interpolates_inside(node: ir.Node) -> bool:
    """Cubic interpolation overshoots its input's range; nearest and linear do not."""
    mode = node.attributes.get("mode")
    return mode is None or mode.value != "cubic"


def _moves(op_type: str, min_opset: int = 1, by_default: bool = True) -> OpRule:
    return OpRule(
        op_type=op_type,
        data=(0,),
        outputs=(0,),
        keeps_scale=True,
        needs_quantized_input=True,
        min_opset=min_opset,
        by_default=by_default,
    )


MOVEMENT_RULES = (
    _moves("Reshape"),
    _moves("Transpose"),
    _moves("Squeeze"),
    _moves("Unsqueeze"),
    _moves("Flatten"),
    _moves("Slice"),
    _moves("TopK"),
    # Before opset 12 MaxPool takes no 8-bit input, and the runtime cannot drop the pair.
    _moves("MaxPool", min_opset=12),
    _moves("GatherElements"),
    _moves("DepthToSpace", by_default=False),
    _moves("SpaceToDepth", by_default=False),
    OpRule(op_type="Gather", data=(0,), outputs=(0,), keeps_scale=True, needs_quantized_input=True),
    OpRule(op_type="Split", data=(0,), keeps_scale=True, needs_quantized_input=True),
    OpRule(
        op_type="Pad",
        data=(0,),
        outputs=(0,),
        keeps_scale=_pads_with_zero,
        needs_quantized_input=True,
        min_opset=11,
    ),
    OpRule(
        op_type="Resize",
        data=(0,),
        outputs=(0,),
        keeps_scale=_interpolates_inside,
        needs_quantized_input=True,
        min_opset=11,
    ),
    # An average lies inside its inputs' range but seldom fills it: a scale of its own is finer.
    OpRule(op_type="AveragePool", data=(0,), outputs=(0,), needs_quantized_input=True),
)
