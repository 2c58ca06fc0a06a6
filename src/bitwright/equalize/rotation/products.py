"""Rotation at products and attention, where it starts and ends."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.equalize.rotation.operands import (
    ATTENTIONS,
    Refused,
    Span,
    constant_behind,
    describe,
    find_values,
    head_of_attention,
    matrix_axes,
    width_of,
)
from bitwright.equalize.rotation.tracing import Slot, Tracing, expect
from bitwright.graph.constants import input_at

__all__ = ["attend", "multiply_matrix"]


def multiply_matrix(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A product: its constant undoes the rotation of what it reads, or rotates its result."""
    axes = matrix_axes(node)
    if axes is not None and not slot.is_output and slot.place == 0:
        tracing.reads += 1
        tracing.edit(node, 1, axes[0], span)
    elif axes is not None and slot.is_output:
        tracing.writes += 1
        tracing.edit(node, 1, axes[1], span)
        if input_at(node, 2) is not None:
            tracing.link_summand(node, 2, span)
    elif axes is not None and slot.place == 2:
        tracing.visit(node.outputs[0], span)
    elif node.op_type == "MatMul" and constant_behind(input_at(node, 1)) is None:
        # What attention does with values: each result is a sum of whole vectors.
        expect(node, slot, inputs=(1,))
        values = node.inputs[1]
        if values is None or values.shape is None or len(values.shape) < 2:
            raise Refused(f"{describe(node)} multiplies a tensor of unknown shape")
        tracing.link_input(node, 1, span)
        tracing.visit(node.outputs[0], span)
    else:
        raise Refused(f"{describe(node)} has no constant matrix behind what is rotated")


def attend(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """An operator for attention: what it makes of rotated values is rotated, and its cache, too."""
    facts = ATTENTIONS[node.domain, node.op_type]
    index, values = find_values(node, facts)
    if head_of_attention(node) != tracing.block:
        raise Refused(f"{describe(node)} has heads of another size")
    expect(node, slot, inputs=(index, facts.past), outputs=(0, facts.present))
    if slot == Slot(index) and span != values:
        raise Refused(f"{describe(node)} reads more than values of it")
    # The runtime stores a cache of 8 bits by scales of its own.
    if node.op_type == "GroupQueryAttention" and any(v is not None for v in node.inputs[12:]):
        raise Refused(f"{describe(node)} quantizes its cache")
    tracing.link_input(node, index, values)
    if facts.bias is not None and input_at(node, facts.bias) is not None:
        bias = input_at(node, facts.bias)
        width = width_of(bias)
        if width is None or constant_behind(bias) is None or values.stop == tracing.block:
            raise Refused(f"{describe(node)} has a bias that is no constant for all heads")
        tracing.edit(node, facts.bias, -1, Span(width - values.stop, width))
    past = input_at(node, facts.past)
    if past is not None:
        tracing.visit(past, Span(0, width_of(past) or tracing.block))  # often it has a name only
    tracing.visit(node.outputs[0], tracing.whole(node.outputs[0]))
    if len(node.outputs) > facts.present:
        present = node.outputs[facts.present]
        tracing.visit(present, tracing.whole(present))
        tracing.note_cache(past, present)
