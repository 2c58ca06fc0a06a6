"""Fuse the nodes that an L2 norm is exported as into LpNormalization.

Exporters write x / |x| as x / max(sqrt(sum(x^2)), epsilon), with the guard against zero in one of
several places. LpNormalization in ONNX Runtime returns zeros for zeros without a guard, so only
vectors shorter than the guard come out differently. It is dropped where it is for vectors of
length 1e-5 or less.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from bitwright.decide.ops.matching import (
    Matched,
    clip_limits,
    is_closed,
    known_axes,
    number,
    operands,
    squared,
    step,
)
from bitwright.graph import constant_of, element_type, is_private, maker_of, static_shape
from bitwright.prepare.passes import Builder, Scope, rewrites

_MAX_GUARD = 1e-5
"""Largest epsilon of a guard against division by zero: far below what a layer computes."""


class _Length(NamedTuple):
    x: ir.Value
    axis: int
    guard: float
    """Epsilon: the shortest length that the guard leaves as it is."""


@rewrites("Div", "Mul", since=7)
def fuse_l2_norm(last: ir.Node, names: Scope) -> bool | str:
    """Replace the nodes of every L2 norm over one axis, in any order of operands.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers; a guard
    that is too large to be dropped is in the notes.
    """
    found = _match(last)
    if found is None:
        return False
    length, matched = found
    nodes = matched.in_order()
    if element_type(length.x) != ir.DataType.FLOAT or not is_closed(nodes, last):
        return False
    if length.guard > _MAX_GUARD:
        return (
            f"the L2 norm at {last.name!r} was not fused: its guard changes vectors up to a "
            f"length of {length.guard:g}"
        )
    settings = {"axis": length.axis, "p": 2}
    Builder(last, names).replace("LpNormalization", [length.x], "_norm", settings, nodes)
    return True


def _match(last: ir.Node) -> tuple[_Length, Matched] | None:
    """Match x / length, or x times the reciprocal of the length."""
    if last.op_type == "Div" and not last.domain:
        matched = Matched([last])
        length = _match_length(last.inputs[1], matched)
        return (length, matched) if length is not None and length.x is last.inputs[0] else None
    for x, other in operands(last, "Mul"):
        matched = Matched([last])
        reciprocal = step(other, "Reciprocal", matched)
        if reciprocal is None:
            continue
        length = _match_length(reciprocal.inputs[0], matched)
        if length is not None and length.x is x:
            return length, matched
    return None


def _match_length(value: ir.Value | None, matched: Matched) -> _Length | None:
    """Match the length of x, widened to the shape of x or not."""
    expand = step(value, "Expand", matched)
    if expand is None:
        return _match_norm(value, matched)
    length = _match_norm(expand.inputs[0], matched)
    return length if length is not None and _widens_to(expand, length.x, matched) else None


def _widens_to(expand: ir.Node, x: ir.Value, matched: Matched) -> bool:
    """Return whether an Expand makes its input as large as x, as the division does by itself."""
    target = expand.inputs[1]
    fixed = constant_of(target)
    if fixed is not None:
        return tuple(int(size) for size in fixed) == static_shape(x)
    shape = maker_of(target)
    if shape is None or shape.op_type != "Shape" or shape.inputs[0] is not x or shape.attributes:
        return False
    if target is not None and is_private(target):
        matched.append(shape)
    return True


def _match_norm(value: ir.Value | None, matched: Matched) -> _Length | None:
    """Match sqrt(sum(x^2)) or ReduceL2, guarded or not."""
    value, floor = _before_guard(value, matched)
    norm = step(value, "ReduceL2", matched)
    if norm is not None:
        return _over_one_axis(norm, norm.inputs[0], floor)
    root = step(value, "Sqrt", matched)
    if root is None:
        return None
    value, squared_floor = _before_guard(root.inputs[0], matched)
    floor = max(floor, math.sqrt(squared_floor))
    for part, constant in operands(step(value, "Add", matched), "Add"):
        epsilon = number(constant)
        if epsilon is not None and epsilon >= 0:
            # What is added to the sum changes a length of 10 times its root by half a percent.
            value, floor = part, max(floor, 10 * math.sqrt(epsilon))
            break
    sums = step(value, "ReduceSum", matched) or step(value, "ReduceSumSquare", matched)
    if sums is None:
        return None
    x = squared(sums.inputs[0], matched) if sums.op_type == "ReduceSum" else sums.inputs[0]
    return _over_one_axis(sums, x, floor)


def _before_guard(value: ir.Value | None, matched: Matched) -> tuple[ir.Value | None, float]:
    """Return what max(value, epsilon) or clip(value, epsilon) guards, and epsilon."""
    clip = step(value, "Clip", matched)
    if clip is not None:
        limits = clip_limits(clip)
        if limits is None or limits[1] is not None:
            return None, 0.0
        return clip.inputs[0], max(limits[0] or 0.0, 0.0)
    for guarded, constant in operands(step(value, "Max", matched), "Max"):
        epsilon = number(constant)
        if epsilon is not None:
            return guarded, max(epsilon, 0.0)
    return value, 0.0


def _over_one_axis(node: ir.Node, x: ir.Value | None, guard: float) -> _Length | None:
    axes = known_axes(node)
    if x is None or axes is None or len(axes) != 1 or not node.attributes.get_int("keepdims", 1):
        return None
    return _Length(x, axes[0], guard)
