"""Checks of integer arithmetic: accumulators that overflow, and 16-bit sums that saturate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.quantizers import Quantizers, name_of
from bitwright.assess.verification.findings import Finding
from bitwright.assess.verification.products import Product, find_products

__all__ = ["check_accumulators", "check_saturation"]

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
        given = product.bias()
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


def _largest_sum(product: Product, depth: int, bias: npt.NDArray[np.int64]) -> int:
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
        turned = product.has_pairs and product.source_type == ir.DataType.INT8
        if not (unsigned or turned) or product.weight_type != ir.DataType.INT8:
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


def _largest_pairs(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the largest sum of two weights of one sign, for each row."""
    above = np.partition(rows, -2, axis=1)[:, -2:].astype(np.int16)
    below = np.partition(rows, 1, axis=1)[:, :2].astype(np.int16)
    largest: npt.NDArray[Any] = np.maximum(above.sum(axis=1), -below.sum(axis=1))
    return largest
