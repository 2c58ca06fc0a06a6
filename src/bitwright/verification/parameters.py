"""Checks of scales, zero points and integer biases, whatever the target."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS, OPERATORS
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph.quantizers import Quantizer, name_of
from bitwright.verification.findings import Facts, Finding

_SMALLEST_NORMAL = {ir.DataType.FLOAT: 2.0**-126, ir.DataType.FLOAT16: 2.0**-14}

# The input of a bias, as it is numbered in each op that has one.
_BIASED = {op: OPERATORS[op].bias for op in LINEAR_OPS}


def lost_scales(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find scales that no value survives.

    Negative ones of constants are none of them: kernels multiply by what is there, and a target
    that wants positive ones has a rule of its own. Those of activations are: ONNX Runtime leaves
    out a Relu by the zero point behind it, and OpenVINO clamps to an empty range.
    """
    if quantizer.scale is None:
        return
    values = quantizer.scale.astype(np.float64).reshape(-1)
    declared = quantizer.node.inputs[1]
    dtype = None if declared is None else declared.dtype
    tiny = _SMALLEST_NORMAL.get(dtype or ir.DataType.FLOAT, 0.0)
    if quantizer.stored_type == ir.DataType.INT32:
        tiny = 0.0  # of a bias: at most 2**31 x 2**-126 of it is lost, which is nothing
    for wrong, what in (
        (np.isnan(values), "not a number"),
        (np.isinf(values), "infinite"),
        (values == 0, "zero, which divides by zero"),
        ((values < 0) & (not view.is_of_constant(quantizer)), "negative"),
        ((values != 0) & (np.abs(values) < tiny), "denormal, which many kernels take for zero"),
    ):
        if wrong.any():
            some = "" if values.size == 1 else f"{wrong.sum()} of {values.size} scales: "
            value = float(values[wrong][0])
            yield f"{some}{value:g} is {what}", {"scale": value}


def other_zero_points(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find zero points of another type or shape than they belong to."""
    zero_point, stored = quantizer.zero_point, quantizer.stored_type
    if quantizer.zero_point_type not in (None, stored) and stored is not None:
        assert quantizer.zero_point_type is not None
        types = f"{quantizer.zero_point_type.name.lower()} beside {stored.name.lower()} values"
        yield f"its zero point is {types}", {"zero_point": types}
    if zero_point is None:
        return
    standard = quantizer.node.domain in ("", "ai.onnx", "com.microsoft")
    if standard and stored == ir.DataType.INT32 and np.any(zero_point != 0):
        value = int(zero_point.reshape(-1)[0])
        yield f"int32 has no zero point, and {value} is given", {"zero_point": value}
    if quantizer.scale is not None and zero_point.size != quantizer.scale.size:
        sizes = f"{zero_point.size} zero points for {quantizer.scale.size} scales"
        yield f"it has {sizes}", {"zero_point": sizes}


def check_biases(view: QuantizedView) -> Iterable[Finding]:
    """Find int32 biases that were cut off, or whose scale is not the accumulator's."""
    for node in view.model.graph.all_nodes():
        index = _BIASED.get(node.op_type)
        bias = None if index is None else view.quantizer_before(node, index)
        if bias is None or bias.stored_type not in (ir.DataType.INT32, ir.DataType.INT16):
            continue
        if not _adds_up_in_32_bits(view, node):
            continue
        integers = bias.stored
        if integers is not None and bias.stored_type == ir.DataType.INT32:
            reach = np.abs(integers.astype(np.int64)).max(initial=0)
            if reach >= 2**31 - 1:
                yield Finding(
                    "bias",
                    name_of(node),
                    "its int32 bias reaches the end of its type and was cut off",
                    {"largest": int(reach)},
                )
        yield from _check_bias_scale(view, node, bias)


def _adds_up_in_32_bits(view: QuantizedView, node: ir.Node) -> bool:
    """Return whether products of these types fit the accumulator that a bias belongs to."""
    factors = [view.quantizer_before(node, index) for index in (0, 1)]
    types = [None if factor is None else factor.stored_type for factor in factors]
    return sum(0 if dtype is None else int(dtype.bitwidth) for dtype in types) <= 32


def _check_bias_scale(view: QuantizedView, node: ir.Node, bias: Quantizer) -> Iterable[Finding]:
    scales, source = view.scales_of_bias(node, bias), view.quantizer_before(node, 0)
    if scales is None or bias.stored_type != ir.DataType.INT32 or source is None:
        return
    given, wanted = scales
    if source.scale is None or source.scale.size != 1 or given.size not in (1, wanted.size):
        return
    # A kernel adds the integers as they are; a thousandth is far beyond any rounding of scales.
    off = ~np.isclose(given, wanted, rtol=1e-3, atol=0.0)
    if off.any():
        pair = float(given[np.argmax(off) % given.size]), float(wanted[np.argmax(off)])
        yield Finding(
            "bias",
            name_of(node),
            f"its int32 bias has the scale {pair[0]:g}, but is added where input x weight "
            f"have {pair[1]:g}",
            {"bias scale": pair[0], "input scale x weight scale": pair[1]},
        )
