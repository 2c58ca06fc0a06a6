"""Scales that hardware prescribes: of biases, of results that it knows, where ranges begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.decide.ops.quantized_view import Breach, QuantizedView
from bitwright.graph import Quantizer, input_at
from bitwright.numerics.types import QTYPES
from bitwright.recipe import Recipe
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class FixedScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scale and a zero point that hardware takes, whatever the file says."""

    scale: float
    zero_point: int


class Scales(Rule, frozen=True, kw_only=True):
    """Scales that are prescribed: of `biases`, of a `fixed_output`, of an `output_range`."""

    form: Literal["float", "int32"] | None = None
    """`biases` are float, or int32 at the zero point 0 and the scale of input times weight."""
    zero_point_input: bool = True
    """False: the dequantizer of a bias has no third input at all."""
    rtol: float | None = None
    """How far a scale may be off: 1e-3 for biases and 1e-4 for results, where nothing is said."""

    ops: tuple[str, ...] = ()
    """The operators whose results are meant."""
    scales: dict[str, FixedScale] = msgspec.field(default_factory=dict)
    """Name of the number type -> what scale and zero point of a `fixed_output` have to be."""
    low: float | None = None
    """Where an `output_range` begins: at 0 behind a Relu."""


def _other_biases(rule: Scales, view: QuantizedView) -> Iterator[Breach]:
    """Find biases in another form than the target adds."""
    for node in view.nodes:
        operator = OPERATORS.get(node.op_type)
        index = None if operator is None or operator.linear is None else operator.bias
        bias = None if index is None else view.quantizer_before(node, index)
        if bias is None:
            continue
        if rule.form == "float":
            yield view.breach(bias, "a quantized bias", "a float one")
            continue
        if not rule.zero_point_input and input_at(bias.node, 2) is not None:
            yield view.breach(bias, "a bias with a zero point", "none")
        if bias.stored_type not in (None, ir.DataType.INT32):
            assert bias.stored_type is not None
            yield view.breach(bias, f"a bias of {bias.stored_type.name.lower()}", "int32")
        elif bias.zero_point is not None and np.any(bias.zero_point):
            yield view.breach(bias, "an int32 bias with a zero point other than 0", "0")
        else:
            yield from _other_bias_scale(rule, view, node, bias)


def _other_bias_scale(
    rule: Scales, view: QuantizedView, node: ir.Node, bias: Quantizer
) -> Iterator[Breach]:
    scales = view.scales_of_bias(node, bias)
    if scales is None:
        return
    given, wanted = scales
    if {given.size, wanted.size} - {1, max(given.size, wanted.size)}:
        return  # of groups, whose scales repeat
    if not np.allclose(given, wanted, rtol=1e-3 if rule.rtol is None else rule.rtol, atol=0.0):
        worst = int(np.argmax(np.abs(given / wanted - 1)))
        both = np.broadcast_arrays(given, wanted)
        one, other = (float(scales[worst]) for scales in both)
        yield view.breach(bias, f"a bias scale of {one:g}", f"input x weight, {other:g}")


def _leave_biases_float(rule: Scales, recipe: Recipe) -> Changes:
    return {"quantize_bias": False} if rule.form == "float" and recipe.quantize_bias else {}


def _results(rule: Scales, view: QuantizedView) -> Iterator[Quantizer]:
    for node in view.of_types(rule.ops):
        yield from view.behind(node)


def _other_outputs(rule: Scales, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    """A result has another scale than the hardware has for it."""
    qtype = quantizer.type_name
    wanted = rule.scales.get(qtype or "")
    if wanted is None or quantizer.scale is None:
        return
    scale, zero = quantizer.first_scale, quantizer.first_zero
    rtol = 1e-4 if rule.rtol is None else rule.rtol
    if not np.isclose(scale, wanted.scale, rtol=rtol, atol=0) or zero != wanted.zero_point:
        allowed = f"scale {wanted.scale:g}, zero point {wanted.zero_point}"
        yield f"{qtype} scale {scale:g}, zero point {zero}", allowed


def _fix_ranges(rule: Scales, recipe: Recipe) -> Changes:
    """Give results the range that makes the scale and zero point which the hardware has."""
    fixed = rule.scales.get(recipe.activation.name)
    if fixed is None:
        return {}
    qtype = QTYPES[recipe.activation.name]
    low, high = ((end - fixed.zero_point) * fixed.scale for end in (qtype.lowest, qtype.highest))
    ranges = {op: (low, high) for op in rule.ops if op not in recipe.output_ranges}
    return {"output_ranges": {**recipe.output_ranges, **ranges}}


def _low_ends(rule: Scales, view: QuantizedView, quantizer: Quantizer) -> Breaches:
    """The range of a result begins below what the operator can give."""
    qtype = quantizer.integers
    if rule.low is None or qtype is None or quantizer.scale is None or quantizer.scale.size != 1:
        return
    scale = quantizer.first_scale
    low = (int(qtype.lowest) - quantizer.first_zero) * scale
    if low < rule.low - scale / 2:
        yield f"a range from {low:.3g} on", f"from {rule.low:g} on"


Scales.ASKS = {
    "biases": Ask(model=_other_biases, needs=("form",), change=_leave_biases_float),
    "fixed_output": Ask(
        tensor=_other_outputs, tensors=_results, needs=("ops", "scales"), change=_fix_ranges
    ),
    "output_range": Ask(tensor=_low_ends, tensors=_results, needs=("ops", "low")),
}
