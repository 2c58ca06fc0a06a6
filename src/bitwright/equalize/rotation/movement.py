"""Rotation through operators that move values: reshapes, transposes, splits, slices, concats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.equalize.rotation.operands import Refused, Span, describe, width_of
from bitwright.equalize.rotation.tracing import Rule, Slot, Tracing, expect
from bitwright.graph.constants import constant_of, input_at


def pass_on(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """An operator with one input and one output, element by element."""
    expect(node, slot, inputs=(0,))
    kind = node.outputs[0].dtype
    if kind is None or not kind.is_floating_point():
        raise Refused(f"{describe(node)} makes no floats of it")
    tracing.link(node, 0, span)


def move(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """Pass a span on through what moves whole vectors of the last axis."""
    expect(node, slot, inputs=(0,))
    if not keeps_last_axis(node):
        raise Refused(f"{describe(node)} changes the last axis")
    pass_on(tracing, node, slot, span)


def keeps_last_axis(node: ir.Node) -> bool:
    """Return whether an operator moves whole vectors of the last axis."""
    source, result = node.inputs[0], node.outputs[0]
    width = width_of(source)
    if source is None or source.shape is None or width is None or width != width_of(result):
        return False
    last = len(source.shape) - 1
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", tuple(range(last, -1, -1)))
        return bool(order) and tuple(order)[-1] == last
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) not in (-1, last)
    if node.op_type == "Slice":
        axes = _slice_axes(node)
        return axes is not None and not {-1, last} & set(axes)
    return True


def _slice_axes(node: ir.Node) -> list[int] | None:
    """Return the axes that a Slice cuts, None where they are computed."""
    given = input_at(node, 3)
    if given is None:
        count = width_of(input_at(node, 1))
        return None if count is None else list(range(count))
    axes = constant_of(given)
    return None if axes is None else [int(axis) for axis in axes.ravel()]


def reshape(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """Pass a span on through a reshape, whole blocks of it where the last axis changes."""
    expect(node, slot, inputs=(0,))
    before, after = node.inputs[0], node.outputs[0]
    if keeps_last_axis(node):
        pass_on(tracing, node, slot, span)
        return
    # Both sides are made of whole blocks, which stay together.
    if span != tracing.whole(after if slot.is_output else before):
        raise Refused(f"{describe(node)} reshapes a tensor of which a part is rotated")
    tracing.link_input(node, 0, tracing.whole(before))
    tracing.visit(after, tracing.whole(after))


def cut_by_slice(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """Pass on the part of a span that a slice of the last axis takes."""
    expect(node, slot, inputs=(0,))
    if keeps_last_axis(node):
        pass_on(tracing, node, slot, span)
        return
    source = node.inputs[0]
    parts = [constant_of(input_at(node, index)) for index in (1, 2)]
    steps = constant_of(input_at(node, 4))
    axes, width = _slice_axes(node), width_of(source)
    single = steps is None or bool(np.all(steps == 1))
    if source is None or source.shape is None or width is None or not single or axes is None:
        raise Refused(f"{describe(node)} cuts the last axis")
    known = all(part is not None for part in parts)
    if not known or len(axes) != 1 or axes[0] % len(source.shape) != len(source.shape) - 1:
        raise Refused(f"{describe(node)} cuts several axes, or makes a tensor of unknown width")
    start, stop, _ = slice(*(int(part.ravel()[0]) for part in parts if part is not None)).indices(
        width
    )
    _cut(tracing, node, slot, span, [(start, stop, node.outputs[0])])


def cut_by_split(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A Split, which may part the values from queries and keys."""
    expect(node, slot, inputs=(0,), outputs=tuple(range(len(node.outputs))))
    source = node.inputs[0]
    if source is None or source.shape is None:
        raise Refused(f"{describe(node)} splits a tensor of unknown shape")
    axis = node.attributes.get_int("axis", 0) or 0
    if axis % len(source.shape) != len(source.shape) - 1:
        tracing.link_input(node, 0, span)
        for value in node.outputs:
            tracing.visit(value, span)
        return
    start, parts = 0, []
    for value in node.outputs:
        width = width_of(value)
        if width is None:
            raise Refused(f"{describe(node)} makes parts of unknown width")
        parts.append((start, start + width, value))
        start += width
    _cut(tracing, node, slot, span, parts)


def _cut(
    tracing: Tracing, node: ir.Node, slot: Slot, span: Span, parts: list[tuple[int, int, ir.Value]]
) -> None:
    """A node that hands on parts of the last axis: the rotated part lies within one of them."""
    if slot.is_output:
        offset = next(start for start, _, value in parts if value is node.outputs[slot.place])
        tracing.link_input(node, 0, Span(span.start + offset, span.stop + offset))
        return
    for start, stop, value in parts:
        if start <= span.start and span.stop <= stop:
            tracing.visit(value, Span(span.start - start, span.stop - start))
        elif start < span.stop and span.start < stop:
            raise Refused(f"{describe(node)} cuts what is rotated into pieces")


def join(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A Concat, such as that of cached and new values."""
    shape, axis = node.outputs[0].shape, node.attributes.get_int("axis", 0) or 0
    if shape is None or axis % len(shape) == len(shape) - 1:
        raise Refused(f"{describe(node)} joins along the last axis")
    for index in range(len(node.inputs)):
        tracing.link(node, index, span)
    for value in node.inputs:
        tracing.note_cache(value, node.outputs[0])


MOVES: dict[tuple[str, str], Rule] = {
    ("", "Cast"): pass_on,
    ("", "Expand"): move,
    ("", "Gather"): move,
    ("", "Identity"): pass_on,
    ("", "Reshape"): reshape,
    ("", "Slice"): cut_by_slice,
    ("", "Squeeze"): move,
    ("", "Tile"): move,
    ("", "Transpose"): move,
    ("", "Unsqueeze"): move,
}
