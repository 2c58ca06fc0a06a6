"""Rotation through sums, products with one factor per vector, squares, norms and means."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.equalize.rotation.norms import fold_gains
from bitwright.equalize.rotation.operands import (
    Refused,
    Span,
    constant_behind,
    describe,
    is_uniform,
    width_of,
)
from bitwright.equalize.rotation.tracing import Slot, Tracing, expect
from bitwright.graph.constants import constant_of, input_at

__all__ = ["add", "divide", "multiply", "take_length", "take_power", "take_sum"]


def add(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A sum or a difference."""
    for index in (0, 1):
        tracing.link_summand(node, index, span)
    tracing.visit(node.outputs[0], span)


def multiply(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A product with a number for each vector, with gains, or of a tensor with itself."""
    left, right = node.inputs[0], node.inputs[1]
    if left is right and not slot.is_output:
        _square(tracing, node, slot, span)
        return
    width = width_of(node.outputs[0])
    factors = [index for index in (0, 1) if _is_number_per_vector(node.inputs[index])]
    if not factors:
        factors = [i for i in (0, 1) if constant_behind(node.inputs[i]) is not None]
        if len(factors) != 1 or width is None:
            raise Refused(f"{describe(node)} multiplies it with another tensor")
        fold_gains(tracing, node, factors[0], None, span)
    carrier = 1 - factors[0]
    if width is None or width_of(node.inputs[carrier]) != width:
        raise Refused(f"{describe(node)} multiplies it with another tensor")
    tracing.link_input(node, carrier, span)
    tracing.visit(node.outputs[0], span)


def divide(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A division by a number for each vector."""
    expect(node, slot, inputs=(0,))
    if not _is_number_per_vector(node.inputs[1]):
        raise Refused(f"{describe(node)} divides it by another tensor")
    width = width_of(node.outputs[0])
    if width is None or width_of(node.inputs[0]) != width:
        raise Refused(f"{describe(node)} divides a tensor of another width")
    tracing.link_input(node, 0, span)
    tracing.visit(node.outputs[0], span)


def _is_number_per_vector(value: ir.Value | None) -> bool:
    """Return whether all channels of a vector meet the same factor."""
    return width_of(value) == 1 or is_uniform(value)


def take_power(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A power, which must be a square."""
    expect(node, slot, inputs=(0,), outputs=())
    exponent = constant_of(node.inputs[1])
    if exponent is None or exponent.size != 1 or float(exponent.ravel()[0]) != 2:
        raise Refused(f"{describe(node)} is no square")
    _square(tracing, node, slot, span)


def _square(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """Squares, of which only sums over the last axis are the same for a rotated vector."""
    squares = node.outputs[0]
    sums = [use.node for use in squares.uses()]
    known = all(n.op_type in _SUMS and not n.domain and _sums_last_axis(n) for n in sums)
    if not known or squares.is_graph_output():
        raise Refused(f"{describe(node)} squares its elements")


_SUMS = ("ReduceMean", "ReduceSum")


def take_length(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The length of each vector, which R keeps."""
    expect(node, slot, inputs=(0,), outputs=())
    if not _sums_last_axis(node):
        raise Refused(f"{describe(node)} sums over other axes, too")


def take_sum(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The sum or mean of each vector, which R can be made to keep."""
    expect(node, slot, inputs=(0,), outputs=())
    if not _sums_last_axis(node) or span != tracing.whole(node.inputs[0]):
        raise Refused(f"{describe(node)} sums over other axes")
    tracing.keep_mean = True


def _sums_last_axis(node: ir.Node) -> bool:
    source, given = node.inputs[0], input_at(node, 1)
    if source is None or source.shape is None:
        return False
    axes = constant_of(given) if given is not None else node.attributes.get_ints("axes", None)
    if axes is None:
        return False
    rank = len(source.shape)
    return [int(axis) % rank for axis in np.ravel(np.asarray(axes))] == [rank - 1]
