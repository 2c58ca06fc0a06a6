"""Checks of scales, zero points and biases, of the file itself, and of what the NPU takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import LINEAR_OPS, OPERATORS, op_types
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.errors import ModelError
from bitwright.graph import Quantizers, check_model, check_order, find_quantized_nodes
from bitwright.graph.quantizers import Quantizer, name_of, position_of
from bitwright.targets import NPU_CNN
from bitwright.targets.npu_limits import NpuOperation
from bitwright.targets.npu_operations import find_npu_operations, why_not_fixed
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


# Checks of the file: quantizers, domains, node order and types ---------------------------------


def check_quantized(quantizers: Quantizers) -> Iterable[Finding]:
    """Find that there is nothing to verify."""
    if not find_quantized_nodes(quantizers.model) and not quantizers.found:
        yield Finding("quantized", "", "nothing in it is quantized; quantize it first")


def check_pairs(quantizers: Quantizers) -> Iterable[Finding]:
    """Find that there are no Q/DQ pairs, from which the NPU's compiler takes its scales."""
    if not quantizers.found:
        yield Finding("quantized", "", "it has no Q/DQ pairs; quantize it in the format qdq")
        return
    for node in find_quantized_nodes(quantizers.model):
        if not node.op_type.endswith(("QuantizeLinear", "DequantizeLinear", "FixNeuron")):
            yield Finding(
                "quantized",
                name_of(node),
                f"{node.op_type} is an integer operator, and the NPU's compiler takes Q/DQ pairs; "
                "quantize it in the format qdq",
            )


def check_domains(model: ir.Model) -> Iterable[Finding]:
    """Find domains whose ops are used and whose opset is not imported."""
    missing: dict[str, ir.Node] = {}
    for node in model.graph.all_nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in model.opset_imports:
            missing.setdefault(domain, node)
    for domain, node in missing.items():
        shown = domain or "ai.onnx"
        yield Finding(
            "domains",
            name_of(node),
            f"its op {node.op_type} is of the domain {shown!r}, whose opset is not imported",
            {"domain": shown},
        )


def check_node_order(model: ir.Model) -> Iterable[Finding]:
    """Find the first node that comes before what it reads."""
    try:
        check_order(model)
    except ModelError as error:
        yield Finding("order", "", str(error).rstrip("."))


def check_form(model: ir.Model) -> Iterable[Finding]:
    """Find what ONNX's checker complains about, in a model whose nodes are in order."""
    if any(check_domains(model)):
        return  # the checker would say the same, less clearly
    try:
        check_model(model)
    except ModelError as error:
        yield Finding("onnx", "", str(error).rstrip("."))


# Checks for the NPU: power-of-two scales, one a tensor, within what its shifters can do --------


_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
_WITH_BIAS = op_types(lambda op: op.linear and op.bias is not None)


def other_types(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find tensors in other types than 8-bit integers; a bias may have more bits."""
    stored = quantizer.stored_type
    if stored is None or stored in _EIGHT_BITS:
        return
    if not (stored.is_integer() and _is_bias(quantizer.node.outputs[0])):
        name = stored.name.lower()
        yield f"it holds {name}, and CNNs on the NPU have int8 and uint8", {"type": name}


def _is_bias(value: ir.Value) -> bool:
    """Whether nothing reads a value but as a bias."""
    uses = list(value.uses())
    return bool(uses) and all(use.node.op_type in _WITH_BIAS and use.idx == 2 for use in uses)


def odd_scales(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find scales that no shift can apply."""
    scales = [] if quantizer.scale is None else [float(s) for s in quantizer.scale.reshape(-1)]
    odd = [s for s in scales if position_of(s) is not None and not _is_power_of_two(s)]
    if odd:
        yield f"its scale {odd[0]:g} is no power of two", {"scale": odd[0]}


def several_scales(view: QuantizedView, quantizer: Quantizer) -> Facts:
    """Find tensors with more than one scale."""
    if quantizer.scale is not None and (count := quantizer.scale.size) != 1:
        yield f"it has {count} scales, and the NPU takes one for each tensor", {"scales": count}


def check_limits(quantizers: Quantizers) -> Iterable[Finding]:
    """Find the positions that the NPU's shifters cannot bring together."""
    # Other scales have no position; that they are there is a finding of its own.
    positions = quantizers.positions(_is_power_of_two)
    operations = find_npu_operations(quantizers.model.graph.all_nodes(), quantizers)
    for rule in NPU_CNN.limits:
        for node, operation in operations:
            for bound in rule.bounds(operation, positions):
                if not bound.holds(positions):
                    value = bound.value(positions)
                    yield Finding(
                        rule.name,
                        name_of(node),
                        f"{bound.label} is {value} and {bound.allowed}",
                        _named(operation, positions),
                    )


def check_shapes(quantizers: Quantizers) -> Iterable[Finding]:
    """Find inputs of open shapes, and of several images at a time."""
    for value in quantizers.model.graph.inputs:
        reason = None if value.is_initializer() else why_not_fixed(value)
        if reason is not None:
            yield Finding(
                "fixed_shapes",
                value.name or "",
                f"the input {reason}, and the NPU takes fixed shapes and a batch of 1; quantize "
                "with rewrite.fix_shapes",
            )


def _is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


def _named(operation: NpuOperation, positions: Mapping[str, int]) -> dict[str, int]:
    several = len(operation.inputs) > 1
    refs = {f"input {i}" if several else "input": ref for i, ref in enumerate(operation.inputs)}
    refs |= {"weight": operation.weight, "bias": operation.bias, "output": operation.output}
    return {
        name: positions[ref] for name, ref in refs.items() if ref is not None and ref in positions
    }
