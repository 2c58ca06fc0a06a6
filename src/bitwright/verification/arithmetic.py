"""Checks of integer arithmetic: accumulators that overflow, and 16-bit sums that saturate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, op_types
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.quantized_ops import INTEGER_OPS, IntegerOp
from bitwright.graph.quantizers import Quantizers, name_of
from bitwright.graph.shapes import static_shape
from bitwright.support.array_types import I64, Array
from bitwright.verification.findings import Finding

_FLOAT_PRODUCTS = op_types(lambda op: op.linear and op.integer_op)
_ENDS = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}
_INT32 = 2**31
# Two products of a uint8 of at most 255 overflow int16 from here on: 255 x 129 > 32767.
_SATURATING_SUM = 129


def check_accumulators(quantizers: Quantizers) -> Iterable[Finding]:
    """Find products whose largest possible sum does not fit into int32.

    For stored weights the sum is exact: the activations that are worst for each channel, within
    their type. Otherwise it is depth x largest x largest.
    """
    for product in find_products(quantizers):
        if product.source_type not in _ENDS or product.weight_type not in _ENDS:
            continue  # wider types are not added up in int32
        depth = product.depth
        if depth is None:
            continue
        given = constant_of(product.bias_value, defaults=True)
        bias = np.zeros(1, np.int64) if given is None else given.astype(np.int64).reshape(-1)
        most = int(np.abs(bias).max(initial=0))
        if most >= _INT32 - 1:
            continue  # the bias alone is found by its own check
        largest = depth * 255 * 255 + most
        if largest >= _INT32:
            largest = _largest_sum(product, depth, bias)
        if largest >= _INT32:
            more = " and the bias" if most else ""
            yield Finding(
                "accumulator",
                name_of(product.node),
                f"{depth} products{more} can sum up to {largest:.3g}, beyond int32",
                {"depth": depth, "largest sum": largest},
                level="warning",
                remedy="leave the node float with --exclude, or quantize with reduce_range=true",
            )


def _largest_sum(product: Product, depth: int, bias: I64) -> int:
    assert product.source_type is not None
    low, high = _ENDS[product.source_type]
    zero = product.source_zero
    # A zero point that is chosen at run time can be at either end.
    low, high = (low - high, high - low) if zero is None else (low - zero, high - zero)
    rows = product.rows()
    zeros = np.zeros(1) if product.weight_zero is None else product.weight_zero
    if rows is None or not {zeros.size, bias.size} <= {1, len(rows)}:
        return depth * max(-low, high) * 255 + int(np.abs(bias).max())
    weights = rows.astype(np.int16) - zeros.astype(np.int16).reshape(-1, 1)
    above = np.maximum(weights, 0).sum(axis=1, dtype=np.int64)
    below = np.minimum(weights, 0).sum(axis=1, dtype=np.int64)
    tops = above * high + below * low + bias
    bottoms = above * low + below * high + bias
    return int(max(tops.max(initial=0), -bottoms.min(initial=0)))


def check_saturation(quantizers: Quantizers) -> Iterable[Finding]:
    """Find weights that make x86 without VNNI clip the sum of two products to 16 bits.

    Its instruction (vpmaddubsw) multiplies uint8 by int8, adds two neighbours and saturates. Which
    weights are neighbours depends on the kernel, so any two of a channel count. Activations of int8
    between pairs are no way out: for x86 the runtime turns them into uint8.
    """
    for product in find_products(quantizers):
        unsigned = product.source_type == ir.DataType.UINT8
        converted = product.has_pairs and product.source_type == ir.DataType.INT8
        if not (unsigned or converted) or product.weight_type != ir.DataType.INT8:
            continue
        rows = None if product.is_depthwise else product.rows()
        if rows is None or rows.shape[1] < 2:
            continue
        count = int(np.count_nonzero(_largest_pairs(rows) >= _SATURATING_SUM))
        if count:
            yield Finding(
                "saturation",
                name_of(product.node),
                f"two products can exceed the 16 bits that x86 without VNNI adds in, in {count} "
                f"of {len(rows)} channels",
                {"channels": count},
                level="warning",
                remedy="quantize with --set reduce_range=true or with uint8 weights, or run with "
                "the session option session.x64quantprecision set to 1",
            )


def _largest_pairs(rows: Array) -> Array:
    """Return the largest sum of two weights of one sign, for each row."""
    above = np.partition(rows, -2, axis=1)[:, -2:].astype(np.int16)
    below = np.partition(rows, 1, axis=1)[:, :2].astype(np.int16)
    largest: Array = np.maximum(above.sum(axis=1), -below.sum(axis=1))
    return largest


# Products of quantized activations and weights, as Q/DQ pairs or as integer operators ---------


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
        sizes = static_shape(self.weight_value)
        if sizes is None:
            return None
        if self.convolves:
            return math.prod(sizes[1:])
        return sizes[-1] if self._transposed else sizes[-2] if len(sizes) > 1 else sizes[-1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, which has kernels of its own."""
        group, shape = self.node.attributes.get_int("group", 1), self.weight_value.shape
        return self.convolves and group > 1 and shape is not None and shape[1] == 1

    def rows(self) -> Array | None:
        """Return the stored integers, a row for each output channel; None for computed weights."""
        integers = constant_of(self.weight_value, defaults=True)
        if integers is None:
            return None
        if self.convolves:
            return integers.reshape(len(integers), -1)
        if integers.ndim == 1:
            return integers.reshape(1, -1)
        transposed = integers if self._transposed else np.swapaxes(integers, -1, -2)
        return transposed.reshape(-1, transposed.shape[-1])

    @property
    def _transposed(self) -> bool:
        return bool(self.node.attributes.get_int("transB", 0))


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
