"""Sizes of a node's tensors, open ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from bitwright.graph.constants import is_constant

Shape = tuple[int, ...]

_OPEN_SIZE = 128
"""Tokens, say, where a dimension beside the first is open."""


class Sizes(NamedTuple):
    """How many computed elements a node reads and writes."""

    read: int
    written: int


def shape_of(value: ir.Value | None) -> Shape | None:
    """Return a value's shape, a batch of one where that is open, and 128 for other open sizes.

    >>> shape_of(ir.val("x", shape=["batch", "tokens", 384]))
    (1, 128, 384)
    """
    if value is None or value.shape is None:
        return None
    return tuple(
        size if isinstance(size, int) else _OPEN_SIZE if index else 1
        for index, size in enumerate(value.shape)
    )


def sizes_of(node: ir.Node) -> Sizes | None:
    """Return how much a node reads and writes, constants apart; None: not known."""
    read = [shape_of(value) for value in node.inputs if not is_stored(value)]
    # Outputs that are left out have no name.
    written = [shape_of(value) for value in node.outputs if value.name or value.shape]
    if None in read or None in written or not written:
        return None
    return Sizes(count_elements(read), count_elements(written))


def count_elements(shapes: Sequence[Shape | None]) -> int:
    """Return how many elements tensors of these shapes have together.

    >>> count_elements([(2, 3), None, (4,)])
    10
    """
    return sum(math.prod(shape) for shape in shapes if shape is not None)


def is_stored(value: ir.Value | None) -> bool:
    """Return whether an input is a constant, or left out."""
    return value is None or is_constant(value)
