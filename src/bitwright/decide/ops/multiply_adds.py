"""How many products a node adds up: convolutions, matrix products, attention, recurrent layers."""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.graph.constants import input_at
from bitwright.graph.quantized_ops import INTEGER_OPS

__all__ = ["is_product", "multiply_adds"]

_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_PRODUCTS = frozenset(LINEAR_OPS) | _ATTENTION | _RECURRENT


def is_product(node: ir.Node) -> bool:
    """Return whether a node multiplies and adds up, as a float operator, an integer one or fused.

    >>> is_product(ir.node("QLinearConv", [ir.val("x")]))
    True
    """
    return _computed_op(node) in _PRODUCTS


def multiply_adds(node: ir.Node, *, open_size: int | None = None) -> int | None:
    """Return how many products a node adds up, 0 for another operator; None: a shape is not known.

    Open sizes count as `open_size`, where one is given.

    >>> multiply_adds(ir.node("Relu", [ir.val("x")]))
    0
    """
    if not is_product(node):
        return 0
    op = _computed_op(node)
    source, result = _shape(input_at(node, 0), open_size), _shape(node.outputs[0], open_size)
    row = INTEGER_OPS.get(node.op_type)
    place = 1 if row is None or row.weight is None else row.weight[0]
    weight = _shape(input_at(node, place), open_size)
    if source is None or result is None:
        return None
    if op in _ATTENTION:
        return _attention(op, source, weight)
    if op in _RECURRENT:
        again = _shape(input_at(node, 2), open_size)
        if weight is None or again is None:
            return None
        return math.prod(source[:2]) * (math.prod(weight) + math.prod(again))
    if op == "ConvTranspose":
        return None if weight is None else math.prod(source) * math.prod(weight[1:])
    if op == "Conv":
        return None if weight is None else math.prod(result) * math.prod(weight[1:])
    transposed = node.attributes.get("transA")
    is_transposed = transposed is not None and bool(transposed.value) and len(source) > 1
    return math.prod(result) * source[-2 if is_transposed else -1]


def _attention(op: str, source: list[int], weight: list[int] | None) -> int | None:
    """Count the scores and what they weigh; com.microsoft's Attention also projects its input."""
    if len(source) != 3 or weight is None:
        return None
    batch, length, width = source
    if op == "Attention" and len(weight) == 2:
        return batch * length * (width * weight[1] + 2 * length * (weight[1] // 3))
    return 2 * batch * length * weight[-2] * width if len(weight) == 3 else None


def _shape(value: ir.Value | None, open_size: int | None = None) -> list[int] | None:
    if value is None or value.shape is None:
        return None
    given = [size if isinstance(size, int) else open_size for size in value.shape]
    sizes = [size for size in given if size is not None]
    return sizes if len(sizes) == len(value.shape) else None


def _computed_op(node: ir.Node) -> str:
    """Return the float operator whose work a node does, also one that is fused with more."""
    row = INTEGER_OPS.get(node.op_type)
    op = node.op_type if row is None else row.computes
    op = op.removeprefix("Nhwc").removeprefix("Fused").removeprefix("Transpose")
    return op.removesuffix("Activation")
