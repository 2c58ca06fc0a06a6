"""Fuse the nodes that HardSigmoid and HardSwish are exported as.

Exporters spell out h(x) = clip(x + 3, 0, 6) / 6 and x h(x) (Howard et al. 2019, arXiv:1905.02244,
section 5.2) as three or four nodes, each of which would be quantized. h is
HardSigmoid(alpha = 1/6, beta = 1/2): max(0, min(1, x / 6 + 1 / 2)).
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.matching import (
    clip_limits,
    divided,
    index_of,
    lone_number,
    operands,
    private_producer,
    private_reader,
)
from bitwright.graph.editing import insert_before, like, remove_nodes, replace_value
from bitwright.prepare.passes import Scope, rewrites


@rewrites("Clip", since=7)
def fuse_hard_swish(clip: ir.Node, names: Scope) -> bool:
    """Replace every clip(x + 3, 0, 6) / 6, also with x multiplied into it.

    The division may stand behind the clip, behind the product or on x, and may be a product with
    1/6. The last tensor keeps its name. Nodes stay where a tensor in between has other readers.
    """
    found = _match_clip(clip)
    behind = private_reader(clip.outputs[0])
    if found is None or behind is None:
        return False
    x, addition = found
    if divided(behind, 6.0, _is_number) is clip.outputs[0]:  # clip(x + 3, 0, 6) / 6
        replace_value(behind.outputs[0], _insert(clip, x, behind, names))
        remove_nodes([behind, clip, addition])
        return True
    if behind.op_type != "Mul":
        return False
    at = index_of(behind, clip.outputs[0])
    other = behind.inputs[1 - at]
    if other is x:  # x * clip(x + 3, 0, 6) / 6
        last = private_reader(behind.outputs[0])
        if last is None or divided(last, 6.0, _is_number) is not behind.outputs[0]:
            return False
        behind.replace_input_with(at, _insert(clip, x, behind, names))
        replace_value(last.outputs[0], behind.outputs[0])
        remove_nodes([last, clip, addition])
        return True
    sixth = private_producer(other, behind)
    if sixth is None or divided(sixth, 6.0, _is_number) is not x:
        return False
    behind.replace_input_with(at, _insert(clip, x, behind, names))  # x / 6 * clip(...)
    behind.replace_input_with(1 - at, x)
    remove_nodes([sixth, clip, addition])
    return True


def _match_clip(clip: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return x, and the node that adds 3 to it, for clip(x + 3, 0, 6)."""
    if clip_limits(clip) != (0.0, 6.0):
        return None
    addition = private_producer(clip.inputs[0], clip)
    found = (x for x, three in operands(addition, "Add") if _is_number(three, 3.0, x))
    x = next(found, None)
    return None if x is None or addition is None else (x, addition)


def _is_number(constant: ir.Value | None, expected: float, value: ir.Value) -> bool:
    """Return whether a constant is this number in its type, and does not enlarge the value."""
    found = lone_number(constant, value)
    # ONNX Runtime has no HardSigmoid of float64.
    if found is None or found.dtype not in (np.float32, np.float16):
        return False
    tolerance = 2 * float(np.finfo(found.dtype).eps)
    return math.isclose(float(found), expected, rel_tol=tolerance)


def _insert(clip: ir.Node, x: ir.Value, before: ir.Node, names: Scope) -> ir.Value:
    """Insert the hard sigmoid of x, under the name of the clip that it replaces."""
    clipped = clip.outputs[0]
    output = like(clipped, names.fresh(f"{clipped.name}_hard_sigmoid"))
    settings = {"alpha": 1 / 6, "beta": 0.5}
    return insert_before(before, "HardSigmoid", [x], output, clip.name or "", settings)
