"""Wires of a graph: who alone writes or reads a tensor, and how to take a node out of the way."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, op_types
from bitwright.graph.constants import is_private
from bitwright.graph.editing import drop_if_unused

__all__ = [
    "index_of",
    "least_rank",
    "private_producer",
    "private_reader",
    "remove_nodes",
    "take_over",
]

_RANK_OF_LARGEST = op_types(lambda op: op.elementwise == "broadcast")
_RANK_OF_FIRST = op_types(
    lambda op: op.elementwise == "unary" or op.activation == "whole" or op.normalizes
) | {"Transpose"}


def private_producer(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the standard node in the same graph that writes a value for this one reader."""
    if value is None or not is_private(value):
        return None
    node = value.producer()
    if node is None or node.domain or node.graph is not reader.graph:
        return None
    return node


def private_reader(value: ir.Value) -> ir.Node | None:
    """Return the standard node in the same graph that alone reads what a node writes."""
    producer = value.producer()
    if producer is None or not is_private(value):
        return None
    (use,) = value.uses()
    return use.node if not use.node.domain and use.node.graph is producer.graph else None


def index_of(node: ir.Node, value: ir.Value) -> int:
    """Return the first input of a node that reads the value."""
    return next(i for i, read in enumerate(node.inputs) if read is value)


def take_over(node: ir.Node, replaced: ir.Node) -> None:
    """Let a node write the tensor, by name and by readers, that another node wrote."""
    old, new = replaced.outputs[0], node.outputs[0]
    new.shape = old.shape if old.shape is not None else new.shape
    new.type = old.type if old.type is not None else new.type
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    new.name = old.name


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes that nothing reads, readers before producers, and constants only they read."""
    for node in nodes:
        inputs = list(node.inputs)
        if node.graph is not None:
            node.graph.remove(node, safe=True)
        for value in inputs:
            drop_if_unused(value)


def least_rank(value: ir.Value | None, depth: int = 8) -> int:
    """Return a rank that the tensor has at least, also where shape inference gave up.

    >>> least_rank(ir.Value(name="x", shape=ir.Shape([2, 3]))), least_rank(ir.Value(name="y"))
    (2, 0)
    """
    if value is None:
        return 0
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return 0
    if node.op_type in _RANK_OF_FIRST:
        return least_rank(node.inputs[0], depth - 1)
    if node.op_type in _RANK_OF_LARGEST:
        return max(least_rank(read, depth - 1) for read in node.inputs)
    if node.op_type in CONVOLUTIONS:
        return least_rank(node.inputs[1], depth - 1)  # (out, in, kernel...) has the input's rank
    if node.op_type == "Gemm":
        return 2
    if node.op_type == "MatMul":
        # Both ranks count, and a vector on one side takes one dimension away.
        ranks = [least_rank(read, depth - 1) for read in node.inputs]
        return max(0, max(ranks) - 1) if min(ranks) < 2 else max(ranks)
    return 0
