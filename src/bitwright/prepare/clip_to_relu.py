"""Rewrite a Clip with lower bound 0 as a Relu, which hardware fuses and equalization passes.

Only the lower end is kept. Where the Clip had an upper one, larger values now go on: what is
observed afterwards includes them, and the quantizer saturates where the range chosen for them ends.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.decide.ops.matching import clip_limits
from bitwright.graph.shapes import element_type
from bitwright.prepare.passes import Builder, Scope, rewrites


@rewrites("Clip")
def clip_to_relu(clip: ir.Node, names: Scope) -> bool:
    """Replace every Clip whose lower end is exactly 0, whatever the upper one."""
    limits = clip_limits(clip)
    return limits is not None and limits[0] == 0 and _replace(clip, names)


@rewrites("Clip")
def clip6_to_relu(clip: ir.Node, names: Scope) -> bool:
    """Replace every Clip from 0 to 6."""
    low, high = clip_limits(clip) or (None, None)
    return low == 0 and high is not None and math.isclose(high, 6.0) and _replace(clip, names)


def _replace(clip: ir.Node, names: Scope) -> bool:
    x, y = clip.inputs[0], clip.outputs[0]
    if x is None or element_type(y) not in (ir.DataType.FLOAT, None):
        return False
    Builder(clip, names).replace("Relu", [x], "_relu")
    return True
