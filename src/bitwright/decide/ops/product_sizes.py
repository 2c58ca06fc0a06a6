"""The sizes of products: how many multiply-adds they take, and which gain nothing from integers.

A target's rules about the latter are read twice: by the planner, which leaves such products float,
and by `verify`, which finds those that are quantized all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS
from bitwright.graph import input_at, is_constant, maker_of, reach
from bitwright.graph.quantized_ops import DEQUANTIZERS, INTEGER_OPS, QUANTIZERS
from bitwright.recipe.sizes import AttentionSizes, ConvolutionSizes, SizeRule, SmallProducts

Shape = Sequence[int | None] | None

_PAIRS = QUANTIZERS | DEQUANTIZERS
# What may stand between the products of an attention and its Softmax: scaling, masks, moves.
_BETWEEN = _PAIRS | frozenset("Add Cast Clip Div Identity Mul Reshape Sub Transpose Where".split())
_BEFORE_FIRST = _PAIRS | frozenset("Cast Identity Pad Reshape Transpose".split())


def why_too_small(
    node: ir.Node, rule: SizeRule, read: Shape, weight: Shape, *, first: bool
) -> tuple[str, str] | None:
    """Return what of a product is too small, or too large, and what is allowed; None: nothing.

    `read` and `weight` are the shapes of its factors, as far as they are known; `first` says that
    it reads what the model is given.
    """
    match rule:
        case SmallProducts():
            return _of_matrices(node, rule, read, weight) if node.op_type in rule.ops else None
        case ConvolutionSizes():
            return _of_convolution(node, rule, weight, first=first)
        case AttentionSizes():
            return _of_attention(node, rule, read, weight)


def _of_matrices(
    node: ir.Node, rule: SmallProducts, read: Shape, weight: Shape
) -> tuple[str, str] | None:
    if weight is None or len(weight) < 2:
        return None
    reduction, channels = weight[-2:]
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
        reduction, channels = channels, reduction
    rows = _rows(node, read)
    if _below(reduction, rule.reduction) or _below(channels, rule.channels):
        found = f"{reduction} values a channel, {channels} channels"
        return found, f"at least {rule.reduction} and {rule.channels}, or float"
    if _below(rows, rule.rows):
        return "the product of a vector", f"{rule.rows} rows or more, or float"
    return None


def _rows(node: ir.Node, read: Shape) -> int | None:
    """Return how many rows a weight is multiplied with; in batches, those of one."""
    if read is None or len(read) < 2:
        return None if read is None else 1
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    return read[-1 if transposed else -2]


def _of_convolution(
    node: ir.Node, rule: ConvolutionSizes, weight: Shape, *, first: bool
) -> tuple[str, str] | None:
    if node.op_type != "Conv" or weight is None or len(weight) < 3:
        return None
    known = [size for size in weight if size is not None]
    if len(known) != len(weight):
        return None
    outputs, inputs, *kernel = known
    volume = math.prod(kernel)
    if rule.kernel_volume and volume > rule.kernel_volume:
        return f"a kernel of {volume} values", f"at most {rule.kernel_volume}, or float"
    if min(outputs, inputs) >= rule.channels:
        return None
    step, group = rule.multiple_of, node.attributes.get_int("group", 1)
    if step and group > 1 and outputs % step == 0 and min(kernel) >= 3:
        return None
    enough = first or max(outputs, inputs) >= rule.channels
    square = group == 1 and len({*kernel}) == 1
    if step and square and enough and (outputs % step == 0 or inputs % step == 0):
        return None
    words = f"{inputs} input and {outputs} output channels"
    words += f" in {group} groups" if group > 1 else ""
    return words, f"at least {rule.channels}, or float"


def _of_attention(
    node: ir.Node, rule: AttentionSizes, read: Shape, other: Shape
) -> tuple[str, str] | None:
    part = attention_part(node)
    if part is None or read is None or other is None or min(len(read), len(other)) < 2:
        return None
    lengths = (read[-2], other[-1]) if part == "scores" else (read[-2], read[-1])
    head = read[-1] if part == "scores" else other[-1]
    length = max((size for size in lengths if size is not None), default=0)
    if rule.length and length > rule.length:
        return f"attention over {length} places", f"at most {rule.length}, or float"
    if head is not None and (head < rule.head_low or (rule.head_high and head > rule.head_high)):
        return f"heads of {head}", f"{rule.head_low} to {rule.head_high}, or float"
    return None


def attention_part(node: ir.Node) -> Literal["scores", "context"] | None:
    """Return which of the two products of an attention a node is; None: neither."""
    if node.op_type != "MatMul" or any(v is None or _is_stored(v) for v in node.inputs):
        return None
    if any(behind.op_type == "Softmax" for behind in _behind(node)):
        return "scores"
    maker = _maker(node.inputs[0], _BETWEEN - {"Add", "Sub", "Div", "Mul", "Where"})
    return "context" if maker is not None and maker.op_type == "Softmax" else None


def is_first(node: ir.Node) -> bool:
    """Whether a node reads what the model is given, and nothing that was computed from it."""
    return _maker(node.inputs[0], _BEFORE_FIRST) is None


def _is_stored(value: ir.Value) -> bool:
    """Whether a value is a constant, or the dequantized form of one."""
    maker = value.producer()
    if maker is not None and maker.op_type in _PAIRS and maker.inputs[0] is not None:
        return _is_stored(maker.inputs[0])
    return is_constant(value)


def _maker(value: ir.Value | None, through: frozenset[str]) -> ir.Node | None:
    """Return the node that a value comes from, before nodes of some types."""
    maker = maker_of(value)
    while maker is not None and maker.op_type in through and maker.inputs:
        maker = maker_of(maker.inputs[0])
    return maker


def _behind(node: ir.Node) -> Iterable[ir.Node]:
    """Return a node, and those that read its result, also behind scaling, masks and moves."""

    def readers(maker: ir.Node) -> list[ir.Node]:
        if maker is not node and maker.op_type not in _BETWEEN:
            return []
        return [use.node for value in maker.outputs for use in value.uses()]

    return reach([node], readers)


def _below(size: int | None, least: int) -> bool:
    return size is not None and size < least


_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_PRODUCTS = frozenset(LINEAR_OPS) | _ATTENTION | RECURRENT


def is_product(node: ir.Node) -> bool:
    """Whether a node multiplies and adds up, as a float operator, an integer one or fused."""
    return _computed_op(node) in _PRODUCTS


def multiply_adds(node: ir.Node, *, open_size: int | None = None) -> int | None:
    """Return how many products a node adds up, 0 for another operator; None: a shape is not known.

    Open sizes count as `open_size`, where one is given.
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
    if op in RECURRENT:
        again = _shape(input_at(node, 2), open_size)
        if weight is None or again is None:
            return None
        return math.prod(source[:2]) * (math.prod(weight) + math.prod(again))
    if op == "ConvTranspose":
        return None if weight is None else math.prod(source) * math.prod(weight[1:])
    if op == "Conv":
        return None if weight is None else math.prod(result) * math.prod(weight[1:])
    transposed = node.attributes.get_int("transA", 0) and len(source) > 1
    return math.prod(result) * source[-2 if transposed else -1]


def sum_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts; None where one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


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
