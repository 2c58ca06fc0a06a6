"""Constants of a graph that equalization changes, above all the matrices of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.graph import NameScope, inline_copy, lazy_tensor, weight_of
from bitwright.graph.constants import constant_tensor, input_at, maker_of
from bitwright.graph.editing import remove_nodes, replace_constant
from bitwright.support.array_types import F64, Array


class Edit(NamedTuple):
    """A constant input of a node, and what it becomes."""

    node: ir.Node
    at: int
    array: Array | ir.TensorProtocol


# Bytes from which on a changed weight is computed when it is asked for, and not kept.
_MIN_LAZY_BYTES = 1 << 20


class Matrix(NamedTuple):
    """The constant matrix of a product."""

    tensor: ir.TensorProtocol
    transposed: bool
    """Whether its columns are the input channels, not its rows."""

    @property
    def channels(self) -> int:
        """How many input channels it has."""
        return int(self.tensor.shape.numpy()[1 if self.transposed else 0])

    def rows(self) -> Array:
        """Return it with one row for each input channel."""
        array = read_inline(self.tensor)
        return array.T if self.transposed else array

    def scaled(self, factors: F64) -> Array | ir.TensorProtocol:
        """Return it with each input channel times its factor."""
        column = factors if self.transposed else factors[:, None]
        return change_lazily(self.tensor, lambda array: (array * column).astype(array.dtype))


def matrix_of(node: ir.Node) -> Matrix | None:
    """Return the constant matrix that a MatMul or Gemm multiplies its input with."""
    if node.domain or node.op_type not in MATRIX_PRODUCTS:
        return None
    if node.attributes.get_int("transA", 0):
        return None  # its channels are not the last axis
    tensor = constant_at(node, 1)
    if tensor is None or len(tensor.shape) != 2:
        return None
    return Matrix(tensor, bool(node.attributes.get_int("transB", 0)))


def constant_at(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """Return the floats that a node reads at an input, also through a Transpose; not read yet."""
    weight = weight_of(node) if index == 1 else None
    if weight is not None and weight.through is not None:
        source = weight.value.const_value
        assert source is not None
        return transposed(source)
    tensor = constant_tensor(input_at(node, index))
    return tensor if tensor is not None and tensor.dtype.is_floating_point() else None


def replace_weight(
    node: ir.Node, index: int, content: Array | ir.TensorProtocol, name: str, names: NameScope
) -> None:
    """Give a node another constant; a Transpose that nothing reads any more goes."""
    maker = maker_of(input_at(node, index))
    replace_constant(node, index, content, name, names)
    if maker is not None and maker.op_type == "Transpose" and not maker.outputs[0].uses():
        remove_nodes([maker])


def change_lazily(
    tensor: ir.TensorProtocol, change: Callable[[Array], Array]
) -> Array | ir.TensorProtocol:
    """Return a tensor with a change; a large one is computed each time that it is asked for."""
    if tensor.nbytes < _MIN_LAZY_BYTES:
        return change(read_inline(tensor))
    return _lazily(tensor, change, tensor.shape.numpy())


def transposed(matrix: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a matrix transposed, each time that it is asked for."""
    return _lazily(matrix, np.transpose, matrix.shape.numpy()[::-1])


def _lazily(
    tensor: ir.TensorProtocol, change: Callable[[Array], Array], shape: Sequence[int]
) -> ir.TensorProtocol:
    def make() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(change(read_inline(tensor))), tensor.dtype)

    return lazy_tensor(make, tensor.dtype, shape)


def read_inline(tensor: ir.TensorProtocol) -> Array:
    """Return the array of a tensor, wherever it is stored."""
    return np.asarray(inline_copy(tensor).numpy())
