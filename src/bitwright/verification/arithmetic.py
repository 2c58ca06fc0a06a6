"""Checks of integer arithmetic: accumulators that overflow, and 16-bit sums that saturate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import CONVOLUTIONS, op_types
from bitwright.graph import INTEGER_OPS, constant_of, input_at, sizes_of, static_shape
from bitwright.graph.quantizers import Quantizer, Quantizers, integer_operand, name_of
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
        if not _ENDS.keys() >= {*product.types}:
            continue  # wider types are not added up in int32
        depth = product.depth
        if depth is None:
            continue
        given = constant_of(product.bias, defaults=True)
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
    assert product.types[0] is not None
    low, high = _ENDS[product.types[0]]
    zero = product.source_zero
    # A zero point that is chosen at run time can be at either end.
    low, high = (low - high, high - low) if zero is None else (low - zero, high - zero)
    rows = product.rows()
    zeros = product.weight.zero_point
    zeros = np.zeros(1) if zeros is None else zeros
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
        read, weight = product.types
        converted = product.has_pairs and read == ir.DataType.INT8
        if not (read == ir.DataType.UINT8 or converted) or weight != ir.DataType.INT8:
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
    source: Quantizer
    weight: Quantizer
    bias: ir.Value | None
    """Its integers."""
    convolves: bool
    has_pairs: bool
    """Between Q/DQ pairs, not an integer op."""

    @property
    def types(self) -> tuple[ir.DataType | None, ir.DataType | None]:
        """The types of both sides."""
        return self.source.stored_type, self.weight.stored_type

    @property
    def source_zero(self) -> int | None:
        """The zero point of what is read; None where it is computed at run time."""
        zero = self.source.zero_point
        known = self.source.zero_value is None or (zero is not None and zero.size == 1)
        return self.source.first_zero if known else None

    @property
    def depth(self) -> int | None:
        """How many products are added up, where the weight's shape is known."""
        sizes = None if self.weight.values is None else static_shape(self.weight.values)
        if sizes is None:
            return None
        if self.convolves:
            return math.prod(sizes[1:])
        return sizes[-1] if self._transposed else sizes[-2] if len(sizes) > 1 else sizes[-1]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, which has kernels of its own."""
        group, sizes = self.node.attributes.get_int("group", 1), sizes_of(self.weight.values)
        return self.convolves and group > 1 and sizes is not None and sizes[1] == 1

    def rows(self) -> Array | None:
        """Return the stored integers, a row for each output channel; None for computed weights."""
        integers = self.weight.stored
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
    source: Quantizer | None
    weight: Quantizer | None
    for node in quantizers.model.graph.all_nodes():
        op, bias = INTEGER_OPS.get(node.op_type), None
        if op is not None and op.weight is not None and op.source_zero is not None:
            source = integer_operand(node, (0, None, op.source_zero))
            weight = integer_operand(node, op.weight)
            bias = None if op.bias is None else input_at(node, op.bias)
        elif node.op_type in _FLOAT_PRODUCTS:
            source, weight, added = (quantizers.quantizer_before(node, at) for at in (0, 1, 2))
            bias = None if added is None else added.values
        else:
            continue
        if source is not None and weight is not None and weight.values is not None:
            convolves = (node.op_type if op is None else op.computes) in CONVOLUTIONS
            yield Product(node, source, weight, bias, convolves, has_pairs=op is None)
