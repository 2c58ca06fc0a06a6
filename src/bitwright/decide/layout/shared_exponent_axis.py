"""Along which axis a tensor in a shared-exponent format is cut into blocks."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from bitwright.decide.layout.entries import Entry, Layout

__all__ = ["choose_shared_exponent_axes"]

_CHANNELS = 1


def choose_shared_exponent_axes(layout: Layout, nodes: Iterable[ir.Node]) -> None:
    """Give entries in a shared-exponent format their axis: that along which a first reader sums.

    Values that share an exponent should be of one dot product: the channels of a convolution, the
    common dimension of a matrix product. A Softmax has its own axis; all else takes the channels.
    """
    for node in nodes:
        for index, key in enumerate(layout.nodes[node.name or ""].inputs):
            if key is None or not (entry := layout.entries[key]).qtype.shares_exponent:
                continue
            if entry.axis is None and (axis := _summed_axis(node, index)) is not None:
                entry.axis = _within(axis, entry)
    for entry in layout.entries.values():
        if entry.qtype.shares_exponent and entry.axis is None:
            entry.axis = _within(_CHANNELS, entry)


def _summed_axis(node: ir.Node, index: int) -> int | None:
    if node.op_type == "MatMul":
        return -1 if index == 0 else -2
    if node.op_type == "Gemm" and index < 2:
        transposed = bool(node.attributes.get_int(("transA", "transB")[index], 0))
        return int(transposed) if index == 1 else int(not transposed)
    if node.op_type in ("Softmax", "LogSoftmax"):
        return node.attributes.get_int("axis", -1)
    return None


def _within(axis: int, entry: Entry) -> int:
    """Return the axis counted from the front, moved to the last one where it lies beyond."""
    shape = entry.value.shape
    if shape is None:
        return axis
    rank = len(shape)
    return max(min(axis if axis >= 0 else axis + rank, rank - 1), 0)
