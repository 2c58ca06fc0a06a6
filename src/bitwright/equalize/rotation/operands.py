"""Operands of products and attention: widths, constant matrices, where the values are."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.equalize.constants import read_inline, transposed
from bitwright.graph.constants import constant_tensor, input_at, maker_of


class Refused(Exception):
    """Why a tensor cannot be rotated."""


class Span(NamedTuple):
    """The part of a last axis that is rotated."""

    start: int
    stop: int


def describe(node: ir.Node) -> str:
    """Return a node in words."""
    return f"{node.op_type} {node.name!r}"


def width_of(value: ir.Value | None) -> int | None:
    """Return the size of the last axis; 1 for a single number, None where it is not known."""
    if value is None:
        return None
    tensor = constant_tensor(value)
    shape = value.shape if tensor is None else ir.Shape(tensor.shape.numpy())
    if shape is not None and len(shape) == 0:
        return 1
    if shape is not None and isinstance(shape[-1], int):
        return shape[-1]
    # Shape inference does not know all: what products take and give has a width all the same.
    return _width_made(value) or _width_read(value)


def _width_made(value: ir.Value) -> int | None:
    node = value.producer()
    if node is None:
        return None
    if (widths := _matrix_widths(node)) is not None:
        return widths[1]
    head = head_of_attention(node)
    if head is None or value is not node.outputs[0]:
        return head
    heads = (node.attributes.get_int(name, 0) for name in ("num_heads", "q_num_heads"))
    return next((head * count for count in heads if count), None)


def _width_read(value: ir.Value) -> int | None:
    for node, index in value.uses():
        if index == 0 and (widths := _matrix_widths(node)) is not None:
            return widths[0]
    return None


def _matrix_widths(node: ir.Node) -> tuple[int, int] | None:
    """Return how many inputs and outputs the constant matrix of a product has."""
    axes = matrix_axes(node) if is_product(node) else None
    tensor = None if axes is None else constant_behind(node.inputs[1])
    if axes is None or tensor is None:
        return None
    sizes = tensor.shape.numpy()
    return int(sizes[axes[0]]), int(sizes[axes[1]])


def constant_behind(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the floats of a constant, or of a constant matrix behind a Transpose; not read yet."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return tensor if tensor.dtype.is_floating_point() else None
    maker = maker_of(value)
    if maker is None or maker.domain or maker.op_type != "Transpose":
        return None
    source = constant_tensor(maker.inputs[0])
    if source is None or len(source.shape) != 2 or not source.dtype.is_floating_point():
        return None
    if tuple(maker.attributes.get_ints("perm", (1, 0)) or ()) != (1, 0):
        return None
    return transposed(source)


def is_uniform(value: ir.Value | None) -> bool:
    """Return whether a value is a constant of one number over and over."""
    tensor = constant_tensor(value)
    if tensor is None or not tensor.size or not tensor.dtype.is_floating_point():
        return False
    array = read_inline(tensor)
    return bool((array == array.flat[0]).all())


def is_product(node: ir.Node) -> bool:
    """Return whether a node is a product of matrices."""
    return not node.domain and node.op_type in MATRIX_PRODUCTS


def matrix_axes(node: ir.Node) -> tuple[int, int] | None:
    """Return the axes of inputs and of outputs of a product's constant matrix, if it has one."""
    tensor = constant_behind(input_at(node, 1))
    if tensor is None or len(tensor.shape) != 2 or node.attributes.get_int("transA", 0) != 0:
        return None
    return (1, 0) if node.attributes.get_int("transB", 0) else (0, 1)


class Attention(NamedTuple):
    """Where an operator for attention has its values."""

    heads: str
    """The attribute with the number of heads of keys and values."""
    values: int
    past: int
    present: int = 2
    bias: int | None = None


ATTENTIONS = {
    ("com.microsoft", "GroupQueryAttention"): Attention("kv_num_heads", 2, 4),
    ("com.microsoft", "MultiHeadAttention"): Attention("num_heads", 2, 7, bias=3),
    ("", "Attention"): Attention("kv_num_heads", 2, 5),
}


def values_of_attention(node: ir.Node) -> tuple[ir.Value, Span] | None:
    """Return the tensor that an operator for attention has its values in, and the part they are."""
    facts = ATTENTIONS.get((node.domain, node.op_type))
    if facts is None:
        return None
    try:
        index, span = find_values(node, facts)
    except Refused:
        return None
    value = node.inputs[index]
    return None if value is None else (value, span)


def head_of_attention(node: ir.Node) -> int | None:
    """Return the size of the heads of an operator for attention; None for other nodes."""
    found = values_of_attention(node)
    if found is None:
        return None
    value, span = found
    if value.shape is not None and len(value.shape) == 4:
        return span.stop
    facts = ATTENTIONS[node.domain, node.op_type]
    heads = node.attributes.get_int(facts.heads, 0)
    return (span.stop - span.start) // heads if heads else None


def find_values(node: ir.Node, facts: Attention) -> tuple[int, Span]:
    """Return the input that holds the values, and the part of it that they are."""
    value = input_at(node, facts.values)
    if value is not None:
        width = width_of(value)
        if width is None or (value.shape is not None and len(value.shape) > 4):
            raise Refused(f"{describe(node)} has values of unknown shape")
        return facts.values, Span(0, width)
    groups = node.attributes.get_int("kv_num_heads", 0) or 0
    every = (node.attributes.get_int("num_heads", 0) or 0) + 2 * groups
    width = width_of(node.inputs[0])
    if node.op_type != "GroupQueryAttention" or not groups or width is None or width % every:
        raise Refused(f"{describe(node)} has its values packed in another way")
    return 0, Span(width - width // every * groups, width)
