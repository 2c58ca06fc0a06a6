"""Which channels of a tensor nodes read behind others that only move them, as channel shuffles do.

Every element gets a number, which Reshape, Transpose, Slice and Split move with it; where it comes
out says what was moved, however it was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import constant_of
from bitwright.support.array_types import I64

Labels = I64

_OPEN_BATCH = 2
"""Samples to number the elements of where theirs is open: what mixes two of them is found out."""


class ChannelReader(NamedTuple):
    """A node that reads whole channels of a tensor, moved by others."""

    node: ir.Node
    place: int
    """The input that it reads them at."""
    order: I64
    """The channels, in the order in which it reads them."""


def channel_readers(
    first: ir.Node, passes: Callable[[ir.Node], bool] = lambda node: False
) -> Iterator[ChannelReader | None]:
    """Yield who reads what a node moves, and nodes behind it; None for all but whole channels.

    What `passes` names gives its first input on as it is.

    >>> x, y = (ir.val(name, shape=[1, 4, 7, 7]) for name in "xy")
    >>> halves = [ir.val("a", shape=[1, 2, 7, 7]), ir.val("b", shape=[1, 2, 7, 7])]
    >>> split = ir.node("Split", [x], {"axis": 1}, outputs=halves)
    >>> relu = ir.node("Relu", [halves[1]], outputs=[y])
    >>> [reader.order.tolist() for reader in channel_readers(split)]
    [[2, 3]]
    """
    sizes = _sizes(first.inputs[0])
    if sizes is None or len(sizes) < 3:
        yield None
        return
    source = np.arange(math.prod(sizes), dtype=np.int64).reshape(sizes)

    def read(node: ir.Node, place: int, labels: Labels) -> Iterator[ChannelReader | None]:
        moved: list[Labels] | None = None
        if passes(node):
            moved = [labels]
        elif node.op_type in MOVES and place == 0 and not node.domain:
            moved = MOVES[node.op_type](node, labels)
        if moved is None:
            order = _order(labels, source)
            yield None if order is None else ChannelReader(node, place, order)
            return
        for value, part in zip(node.outputs, moved, strict=True):
            if value.is_graph_output():
                yield None
            for use in value.uses():
                yield from read(use.node, use.idx, part)

    yield from read(first, 0, source)


def _order(labels: Labels, source: Labels) -> I64 | None:
    """Return the channels that a tensor consists of; None: it has not whole ones, once each."""
    if labels.ndim != source.ndim or labels.shape[2:] != source.shape[2:]:
        return None
    order = labels.reshape(*labels.shape[:2], -1)[0, :, 0] // math.prod(labels.shape[2:])
    if len({*order.tolist()}) < len(order) or order.max(initial=0) >= source.shape[1]:
        return None
    return order if np.array_equal(labels, source[:, order]) else None


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None where more than the number of samples is open."""
    if value is None or value.shape is None or not len(value.shape):
        return None
    batch, *others = value.shape
    sizes = [size for size in others if isinstance(size, int)]
    if len(sizes) < len(others):
        return None
    return batch if isinstance(batch, int) else _OPEN_BATCH, *sizes


def _slice(node: ir.Node, labels: Labels) -> list[Labels] | None:
    given = [constant_of(value) for value in node.inputs[1:]]
    if len(given) < 2 or any(array is None for array in given):
        return None  # before opset 10 they are attributes
    starts, ends, *others = (array.tolist() for array in given if array is not None)
    axes = others[0] if others else range(len(starts))
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    index = [slice(None)] * labels.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 1:
            return None
        index[axis] = slice(start, end, step)
    return [labels[tuple(index)]]


def _split(node: ir.Node, labels: Labels) -> list[Labels] | None:
    axis = node.attributes.get_int("axis", 0)
    sizes = [_sizes(value) for value in node.outputs]
    if None in sizes:
        return None
    ends = np.cumsum([size[axis] for size in sizes if size is not None])
    return np.split(labels, ends[:-1], axis) if ends[-1] == labels.shape[axis] else None


def _transpose(node: ir.Node, labels: Labels) -> list[Labels]:
    return [labels.transpose(node.attributes.get_ints("perm"))]


def _reshape(node: ir.Node, labels: Labels) -> list[Labels] | None:
    sizes = _sizes(node.outputs[0])
    return [labels.reshape(sizes)] if sizes and math.prod(sizes) == labels.size else None


MOVES: dict[str, Callable[[ir.Node, Labels], list[Labels] | None]] = {
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    **dict.fromkeys(["Reshape", "Squeeze", "Unsqueeze", "Flatten"], _reshape),
}
"""Operator -> what it makes of numbered elements; None where that is not known beforehand."""
