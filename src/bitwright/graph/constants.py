"""Read the constants of a graph: initializers, Constant nodes and the weights of products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.support.array_types import Array


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def maker_of(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a value; None where it has none, or where there is no value."""
    return None if value is None else value.producer()


def constant_tensor(value: ir.Value | None, *, defaults: bool = False) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, which is not read yet, or None for what is computed.

    An initializer that is also a graph input can be overridden by the caller: it counts as constant
    only with `defaults`.
    """
    if value is None or (value.is_graph_input() and not defaults):
        return None
    return ir.convenience.get_const_tensor(value)


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is known before the model runs and cannot be overridden."""
    return constant_tensor(value) is not None


def constant_of(value: ir.Value | None, *, defaults: bool = False) -> Array | None:
    """Return the array of a constant, or None for what is computed; see `constant_tensor`."""
    tensor = constant_tensor(value, defaults=defaults)
    return None if tensor is None else np.asarray(tensor.numpy())


def float_constant_of(value: ir.Value | None) -> Array | None:
    """Return the array of a floating-point constant, else None."""
    tensor = constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return np.asarray(tensor.numpy())


def is_private(value: ir.Value) -> bool:
    """Return whether one single node input reads the value, and no caller of the model does."""
    return len(value.uses()) == 1 and not value.is_graph_output()


_PRODUCTS = ("MatMul", "Gemm")
EXPERT_WEIGHTS = (2, 4, 6)
"""The inputs of com.microsoft's MoE that are weights, [experts, outputs, inputs] each; the second
of them multiplies what the others make."""


class ProductWeight(NamedTuple):
    """The constant that a MatMul, Gemm or Gather has for its weight."""

    value: ir.Value
    transposed: bool
    """Whether it is stored as [N, K]: N outputs, or rows of a table, of K inputs each."""
    through: ir.Node | None = None
    """The Transpose between the constant and its reader."""


def weight_of(node: ir.Node) -> ProductWeight | None:
    """Return the weight of a product or the table of a lookup, or None where it is not constant.

    A Transpose between the constant and its reader belongs to the reader: that is how a head reads
    the table of its embedding, or an embedding the weight of its head.
    """
    looked_up = node.op_type == "Gather"
    if node.domain or not (looked_up or node.op_type in _PRODUCTS):
        return None
    index = 0 if looked_up else 1
    value = input_at(node, index)
    if value is None:
        return None
    transposed = looked_up or (
        node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    )
    maker = value.producer()
    if maker is not None and is_transposed_constant(maker):
        source = maker.inputs[0]
        assert source is not None
        return ProductWeight(source, not transposed, maker)
    return (
        ProductWeight(value, transposed) if value.is_initializer() and is_constant(value) else None
    )


def weights_of(node: ir.Node) -> tuple[ProductWeight, ...]:
    """Return all weights of a node; none where one of them is not constant."""
    if node.op_type != "MoE":
        weight = weight_of(node)
        return () if weight is None else (weight,)
    values = [value for place in EXPERT_WEIGHTS if (value := input_at(node, place)) is not None]
    if not all(value.is_initializer() and is_constant(value) for value in values):
        return ()
    return tuple(ProductWeight(value, transposed=True) for value in values)


def is_transposed_constant(node: ir.Node) -> bool:
    """Return whether a node transposes a constant matrix that weight readers alone read."""
    if node.domain or node.op_type != "Transpose" or node.outputs[0].is_graph_output():
        return False
    source = node.inputs[0]
    if source is None or not source.is_initializer() or not is_constant(source):
        return False
    order = node.attributes.get_ints("perm", (1, 0))
    if source.shape is None or len(source.shape) != 2 or tuple(order or ()) != (1, 0):
        return False
    places = dict.fromkeys(_PRODUCTS, 1) | {"Gather": 0}
    return all(
        not use.node.domain and places.get(use.node.op_type) == use.idx
        for use in node.outputs[0].uses()
    )
