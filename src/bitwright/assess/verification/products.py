"""Products of quantized activations and weights, as Q/DQ pairs or as integer operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.quantizers import Quantizers
from bitwright.decide.ops import CONVOLUTIONS, op_types
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.quantized_ops import INTEGER_OPS, IntegerOp

__all__ = ["Product", "find_products"]

Array = npt.NDArray[Any]


_FLOAT_PRODUCTS = op_types(lambda op: op.linear and op.integer_op)


@dataclass(frozen=True, slots=True)
class Product:
    """A Conv, Gemm or MatMul whose two sides are integers."""

    node: ir.Node
    source_type: ir.DataType | None
    source_zero: int | None
    """None where it is computed at run time."""
    weight_type: ir.DataType | None
    weight_value: ir.Value
    weight_zero: Array | None
    bias_value: ir.Value | None
    convolves: bool
    has_pairs: bool
    """Between Q/DQ pairs, not an integer op."""

    @property
    def depth(self) -> int | None:
        """How many products are added up, where the weight's shape is known."""
        shape = self.weight_value.shape
        if shape is None or not all(isinstance(size, int) for size in shape):
            return None
        sizes = [int(size) for size in shape]  # type: ignore[arg-type]
        if self.convolves:
            return int(np.prod(sizes[1:]))
        return sizes[-1] if self._transposed else sizes[-2] if len(sizes) > 1 else sizes[-1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, which has kernels of its own."""
        group = self.node.attributes.get("group")
        shape = self.weight_value.shape
        return bool(
            self.convolves
            and group is not None
            and group.value > 1
            and shape is not None
            and shape[1] == 1
        )

    def rows(self) -> Array | None:
        """Return the stored integers, a row for each output channel; None for computed weights."""
        integers = constant_of(self.weight_value, defaults=True)
        if integers is None:
            return None
        if self.convolves:
            return integers.reshape(len(integers), -1)
        if integers.ndim == 1:
            return integers.reshape(1, -1)
        turned = integers if self._transposed else np.swapaxes(integers, -1, -2)
        return turned.reshape(-1, turned.shape[-1])

    def bias(self) -> Array | None:
        """Return the stored bias."""
        return constant_of(self.bias_value, defaults=True)

    @property
    def _transposed(self) -> bool:
        return "transB" in self.node.attributes and bool(self.node.attributes["transB"].value)


def find_products(quantizers: Quantizers) -> Iterator[Product]:
    """Return the products of a model in the order of its nodes."""
    for node in quantizers.model.graph.all_nodes():
        if node.op_type in _FLOAT_PRODUCTS:
            found = _between_pairs(node, quantizers)
        elif node.op_type in INTEGER_OPS:
            found = _of_integers(node, INTEGER_OPS[node.op_type])
        else:
            continue
        if found is not None:
            yield found


def _between_pairs(node: ir.Node, quantizers: Quantizers) -> Product | None:
    source, weight = (quantizers.quantizer_before(node, place) for place in (0, 1))
    if source is None or weight is None or weight.node.inputs[0] is None:
        return None
    bias = quantizers.quantizer_before(node, 2)
    return Product(
        node,
        source.stored_type,
        _single(source.zero_point, absent=len(source.node.inputs) < 3),
        weight.stored_type,
        weight.node.inputs[0],
        weight.zero_point,
        None if bias is None else bias.node.inputs[0],
        node.op_type in CONVOLUTIONS,
        has_pairs=True,
    )


def _of_integers(node: ir.Node, op: IntegerOp) -> Product | None:
    if op.weight is None or op.source_zero is None:
        return None
    weight = input_at(node, op.weight[0])
    if weight is None:
        return None
    zero, weight_zero = (
        constant_of(input_at(node, place), defaults=True)
        for place in (op.source_zero, op.weight[2])
    )
    return Product(
        node,
        _type_of(node.inputs[0], zero),
        _single(zero, absent=input_at(node, op.source_zero) is None),
        _type_of(weight, weight_zero),
        weight,
        weight_zero,
        None if op.bias is None else input_at(node, op.bias),
        op.computes in CONVOLUTIONS,
        has_pairs=False,
    )


def _type_of(value: ir.Value | None, zero_point: Array | None) -> ir.DataType | None:
    if zero_point is not None:
        return ir.DataType.from_numpy(zero_point.dtype)
    return None if value is None else value.dtype


def _single(zero_point: Array | None, *, absent: bool) -> int | None:
    if absent:
        return 0
    if zero_point is None or zero_point.size != 1:
        return None
    return int(zero_point.reshape(-1)[0])
