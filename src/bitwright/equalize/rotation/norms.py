"""Rotation through norms, whose gains are folded into the products behind them."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.equalize.rotation.movement import MOVES, keeps_last_axis
from bitwright.equalize.rotation.operands import (
    Refused,
    Span,
    describe,
    is_product,
    is_uniform,
    matrix_axes,
)
from bitwright.equalize.rotation.tracing import Fold, Slot, Tracing, expect
from bitwright.graph.constants import constant_tensor, input_at


def normalize(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """A norm over the last axis."""
    expect(node, slot, inputs=(0,))
    source = node.inputs[0]
    axis = node.attributes.get_int("axis", -1)
    if axis != -1 and (source is None or source.shape is None or axis != len(source.shape) - 1):
        raise Refused(f"{describe(node)} normalizes over several axes")
    centres = node.op_type == "LayerNormalization"
    _normalize(tracing, node, span, gains=1, centres=centres)
    tracing.link_input(node, 0, span)


def normalize_sum(tracing: Tracing, node: ir.Node, slot: Slot, span: Span) -> None:
    """The runtime's norm of a sum, which it also hands out."""
    centres = node.op_type == "SkipLayerNormalization"
    bias = 4 if centres else 3
    expect(node, slot, inputs=(0, 1), outputs=(0, 3))
    _normalize(tracing, node, span, gains=2, centres=centres)
    for index in (0, 1):
        tracing.link_input(node, index, span)
    if input_at(node, bias) is not None:
        tracing.link_input(node, bias, span)
    if len(node.outputs) > 3:
        tracing.visit(node.outputs[3], span)


def _normalize(tracing: Tracing, node: ir.Node, span: Span, *, gains: int, centres: bool) -> None:
    """A norm with its gains, and its offsets behind them: alike, or taken over by products."""
    if span != tracing.whole(node.outputs[0]):
        raise Refused(f"{describe(node)} normalizes a tensor of which a part is rotated")
    tracing.keep_mean |= centres
    offsets = gains + 1 if centres and input_at(node, gains + 1) is not None else None
    alike = [is_uniform(input_at(node, i)) for i in (gains, offsets) if i is not None]
    if not all(alike):
        fold_gains(tracing, node, gains, offsets, span)
    tracing.visit(node.outputs[0], span)


def fold_gains(
    tracing: Tracing, node: ir.Node, gains: int, offsets: int | None, span: Span
) -> None:
    """Fold the gains of a node into the products behind it."""
    result = node.outputs[0]
    if span != tracing.whole(result):
        raise Refused(f"{describe(node)} scales a tensor of which a part is rotated")
    for index in (gains, offsets):
        given = None if index is None else constant_tensor(input_at(node, index))
        if index is not None and (given is None or given.size != span.stop):
            raise Refused(f"{describe(node)} has gains that are no constant of its width")
    if all(fold.node is not node for fold in tracing.folds):
        products = tuple(_products_behind(result, node))
        tracing.folds.append(Fold(node, gains, offsets, products))


def _products_behind(value: ir.Value, norm: ir.Node) -> list[ir.Node]:
    """Return the products that read a tensor, which nothing else may do."""
    if value.is_graph_output():
        raise Refused(f"the gains of {describe(norm)} reach the output {value.name!r}")
    found = []
    for node, index in value.uses():
        if (node.domain, node.op_type) in MOVES and index == 0 and keeps_last_axis(node):
            found += _products_behind(node.outputs[0], norm)
        elif is_product(node) and index == 0 and matrix_axes(node) is not None:
            found.append(node)
        elif node.op_type not in SHAPE_READERS:
            raise Refused(
                f"{describe(node)} reads what {describe(norm)} scales by channel, and has no "
                "weights to take that over"
            )
    return list(dict.fromkeys(found))


SHAPE_READERS = ("Shape", "Size")
