"""Rules of a target about single tensors: types, zero points, granularity, biases, fixed scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.quantized_ops import QUANTIZERS
from bitwright.graph.quantizers import Quantizer, name_of
from bitwright.targets import rules
from bitwright.verification.view import Breach, TargetView, integers_of, type_names, type_of

__all__ = [
    "find_axes",
    "find_biases",
    "find_blocks",
    "find_codes",
    "find_fixed",
    "find_foreign_opset",
    "find_granularity",
    "find_low_ends",
    "find_mixtures",
    "find_negative_scales",
    "find_old_opset",
    "find_output_types",
    "find_quantized_weights",
    "find_readers",
    "find_scales_of_scales",
    "find_types",
    "find_unwritten_axes",
    "find_zero_points",
]

Array = npt.NDArray[Any]


def find_types(view: TargetView, rule: rules.Types) -> Iterator[Breach]:
    """Find tensors of other number types."""
    seen = set()
    for quantizer in view.of_role(rule.role, rule.ops):
        stored = type_of(quantizer)
        if stored is None or stored in rule.types:
            continue
        breach = view.breach(quantizer, f"{rule.role} of {stored}", type_names(rule.types))
        if (breach.node, stored) not in seen:  # its Q and its DQ say the same
            seen.add((breach.node, stored))
            yield breach


def find_zero_points(view: TargetView, rule: rules.ZeroPoints) -> Iterator[Breach]:
    """Find zero points that lie elsewhere."""
    for quantizer in view.of_role(rule.role):
        qtype, zeros, scale = integers_of(quantizer), quantizer.zero_point, quantizer.scale
        if qtype is None or zeros is None or (rule.types and qtype.name not in rule.types):
            continue
        if rule.several and (scale is None or scale.size < 2):
            continue
        places = {
            "zero": 0,
            "lowest": int(qtype.lowest),
            "middle": int(qtype.lowest + qtype.highest + 1) // 2,
        }
        allowed = [places[place] for place in rule.at]
        others = [int(zero) for zero in zeros.reshape(-1) if int(zero) not in allowed]
        if others and quantizer.node.op_type not in QUANTIZERS:
            words = " or ".join(map(str, dict.fromkeys(allowed)))
            yield view.breach(
                quantizer, f"{qtype} {rule.role} with the zero point {others[0]}", words
            )


def find_negative_scales(view: TargetView, rule: rules.PositiveScales) -> Iterator[Breach]:
    """Find constants whose integers are multiplied by negative numbers."""
    allowed = "scales above zero"
    for quantizer in view.quantizers.found.values():
        if quantizer.scale is None or not view.is_of_constant(quantizer):
            continue
        if np.any(quantizer.scale < 0):
            yield view.breach(quantizer, _negative(quantizer.scale), allowed)
    for node in view.of_types(("MatMulNBits",)):
        scale = constant_of(input_at(node, 2))
        if scale is not None and np.any(scale < 0):
            yield Breach(name_of(node), _negative(scale), allowed)


def _negative(scale: Array) -> str:
    return f"{np.count_nonzero(scale < 0)} of {scale.size} scales are negative"


def find_granularity(view: TargetView, rule: rules.Granularity) -> Iterator[Breach]:
    """Find tensors with more, or other, scales."""
    for quantizer in view.of_role(rule.role, rule.ops):
        if quantizer.scale is None:
            continue
        if quantizer.node.op_type in QUANTIZERS and rule.role == "weight":
            continue
        if rule.types and type_of(quantizer) not in rule.types:
            continue
        per = "tensor" if quantizer.scale.size == 1 else "channel"
        if quantizer.node.attributes.get_int("block_size", 0):
            per = "block"
        if per not in rule.per:
            words = " or ".join(f"one a {name}" for name in rule.per)
            found = f"the {rule.role} has {quantizer.scale.size} scales, one a {per}"
            if per == "tensor":
                found = f"the {rule.role} has one scale"
            yield view.breach(quantizer, found, words)


def find_axes(view: TargetView, rule: rules.ChannelAxis) -> Iterator[Breach]:
    """Find scales of channels along another axis than that of the output channels."""
    for quantizer in view.of_role("weight"):
        blocks = quantizer.node.attributes.get_int("block_size", 0)
        value = quantizer.node.inputs[0]
        if blocks or quantizer.scale is None or quantizer.scale.size < 2 or value is None:
            continue
        if value.shape is None or quantizer.node.op_type in QUANTIZERS:
            continue
        given = quantizer.node.attributes.get_int("axis", 1) % len(value.shape)
        for reader, index in _uses(quantizer):
            operator = OPERATORS.get(reader.op_type)
            axis_of = None if operator is None else operator.channel_axis
            wanted = None if axis_of is None else axis_of(reader, index)
            if wanted is not None and wanted % len(value.shape) != given:
                found = f"scales along axis {given} of the weight"
                yield view.breach(quantizer, found, f"axis {wanted % len(value.shape)}")


def find_unwritten_axes(view: TargetView, rule: rules.WrittenAxis) -> Iterator[Breach]:
    """Find pairs with several scales that leave their axis to the default."""
    for quantizer in view.quantizers.found.values():
        several = quantizer.scale is not None and quantizer.scale.size > 1
        if several and "axis" not in quantizer.node.attributes:
            yield view.breach(quantizer, "several scales, and no attribute axis", "a written axis")


def find_blocks(view: TargetView, rule: rules.BlockShape) -> Iterator[Breach]:
    """Find blocks of other sizes, and rows of low-bit values that do not fill their last byte."""
    for quantizer in view.quantizers.found.values():
        qtype, value = type_of(quantizer), quantizer.node.inputs[0]
        if qtype not in rule.types or value is None or value.shape is None:
            continue
        sizes = [size for size in value.shape if isinstance(size, int)]
        if rule.even_last_axis and sizes and sizes[-1] % 2:
            yield view.breach(quantizer, f"a last axis of {sizes[-1]}", "an even one")
        block = quantizer.node.attributes.get_int("block_size", 0)
        if not block:
            continue
        if (rule.sizes and block not in rule.sizes) or block % rule.multiple_of:
            words = " or ".join(map(str, rule.sizes)) or f"a multiple of {rule.multiple_of}"
            yield view.breach(quantizer, f"blocks of {block}", words)
        axis = quantizer.node.attributes.get_int("axis", 1)
        rank = len(value.shape)
        if rule.last_axes and axis % rank < rank - rule.last_axes:
            words = "the last" if rule.last_axes == 1 else f"one of the last {rule.last_axes}"
            yield view.breach(quantizer, f"blocks along axis {axis} of {rank}", words)
        if rule.whole and len(sizes) == len(value.shape) and sizes[axis] % block:
            yield view.breach(quantizer, f"blocks of {block} along {sizes[axis]}", "whole blocks")


def find_codes(view: TargetView, rule: rules.WeightCodes) -> Iterator[Breach]:
    """Find weights whose integers leave a range."""
    for quantizer in view.of_role("weight"):
        if type_of(quantizer) not in rule.types:
            continue
        integers = constant_of(quantizer.node.inputs[0], defaults=True)
        if integers is None or not integers.size:
            continue
        low, high = int(integers.min()), int(integers.max())
        if low < rule.low or high > rule.high:
            yield view.breach(quantizer, f"integers in {low}..{high}", f"{rule.low}..{rule.high}")


def find_biases(view: TargetView, rule: rules.Biases) -> Iterator[Breach]:
    """Find biases in another form than the target adds."""
    for node in view.nodes:
        operator = OPERATORS.get(node.op_type)
        index = None if operator is None or operator.linear is None else operator.bias
        bias = None if index is None else view.quantizers.quantizer_before(node, index)
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
            yield from _check_scale(view, node, bias, rule.rtol)


def _check_scale(view: TargetView, node: ir.Node, bias: Quantizer, rtol: float) -> Iterator[Breach]:
    source, weight = (view.quantizers.quantizer_before(node, place) for place in (0, 1))
    if source is None or weight is None:
        return
    if source.scale is None or weight.scale is None or bias.scale is None:
        return
    wanted = source.scale.astype(np.float64).reshape(-1) * weight.scale.astype(np.float64)
    given = bias.scale.astype(np.float64).reshape(-1)
    wanted = wanted.reshape(-1)
    if {given.size, wanted.size} - {1, max(given.size, wanted.size)}:
        return  # of groups, whose scales repeat
    if not np.allclose(given, wanted, rtol=rtol, atol=0.0):
        worst = int(np.argmax(np.abs(given / wanted - 1)))
        one = float(np.broadcast_to(given, max(given.shape, wanted.shape))[worst])
        other = float(np.broadcast_to(wanted, max(given.shape, wanted.shape))[worst])
        yield view.breach(bias, f"a bias scale of {one:g}", f"input x weight, {other:g}")


def find_fixed(view: TargetView, rule: rules.FixedOutput) -> Iterator[Breach]:
    """Find results with other scales than the hardware has for them."""
    for node in view.of_types(rule.ops):
        for behind in view.behind(node):
            qtype = type_of(behind)
            wanted = rule.scales.get(qtype or "")
            if wanted is None or behind.scale is None:
                continue
            scale = float(behind.scale.reshape(-1)[0])
            zeros = behind.zero_point
            zero = 0 if zeros is None else int(zeros.reshape(-1)[0])
            if not np.isclose(scale, wanted.scale, rtol=rule.rtol, atol=0) or (
                zero != wanted.zero_point
            ):
                found = f"{qtype} scale {scale:g}, zero point {zero}"
                allowed = f"scale {wanted.scale:g}, zero point {wanted.zero_point}"
                yield view.breach(behind, found, allowed)


def find_low_ends(view: TargetView, rule: rules.OutputRange) -> Iterator[Breach]:
    """Find results whose range begins below what the operator can give."""
    for node in view.of_types(rule.ops):
        for behind in view.behind(node):
            qtype = integers_of(behind)
            if qtype is None or behind.scale is None or behind.scale.size != 1:
                continue
            scale = float(behind.scale.reshape(-1)[0])
            zero = 0 if behind.zero_point is None else int(behind.zero_point.reshape(-1)[0])
            low = (int(qtype.lowest) - zero) * scale
            if low < rule.low - scale / 2:
                yield view.breach(behind, f"a range from {low:.3g} on", f"from {rule.low:g} on")


def find_scales_of_scales(view: TargetView, rule: rules.NestedScales) -> Iterator[Breach]:
    """Find weights in blocks whose scales are stored in another form."""
    for quantizer in view.of_role("weight"):
        if quantizer.node.op_type in QUANTIZERS or type_of(quantizer) not in rule.types:
            continue
        value = input_at(quantizer.node, 1)
        maker = None if value is None else value.producer()
        inner = None if maker is None else view.quantizers.found.get(maker)
        if inner is None:
            if rule.required:
                words = f"scales of {type_names(rule.scale_types)}, with one of their own"
                yield view.breach(quantizer, "float scales of blocks", words)
            continue
        readers = [reader.op_type for reader, _ in _uses(quantizer)]
        others = [op for op in readers if op not in rule.ops]
        several = inner.scale is not None and inner.scale.size > 1
        if type_of(inner) not in rule.scale_types:
            words = type_names(rule.scale_types)
            yield view.breach(quantizer, f"scales stored as {type_of(inner)}", words)
        elif inner.scale is None or several != (rule.per == "channel"):
            yield view.breach(quantizer, "scales of scales", f"one a {rule.per}")
        elif others:
            yield view.breach(quantizer, f"a weight of {others[0]}", type_names(rule.ops))


def find_quantized_weights(view: TargetView, rule: rules.StoredWeights) -> Iterator[Breach]:
    """Find weights that are quantized in the model instead of stored."""
    for quantizer in view.of_role("weight"):
        if quantizer.node.op_type in QUANTIZERS and type_of(quantizer) in rule.types:
            found = f"a float weight behind a quantizer of {type_of(quantizer)}"
            yield view.breach(quantizer, found, "stored values, and a dequantizer")


def find_mixtures(view: TargetView, rule: rules.UnmixedTypes) -> Iterator[Breach]:
    """Find the first activation of another type than the one before it."""
    first = None
    for quantizer in view.of_role("activation"):
        stored = type_of(quantizer)
        if stored not in rule.types:
            continue
        first = first or stored
        if stored != first:
            yield view.breach(quantizer, f"{stored} beside {first}", "one of them in all the model")
            return


def find_output_types(view: TargetView, rule: rules.NoOutputType) -> Iterator[Breach]:
    """Find quantizers that say their type in an attribute."""
    for quantizer in view.quantizers.found.values():
        if "output_dtype" in quantizer.node.attributes and type_of(quantizer) in rule.types:
            found = f"output_dtype on a quantizer of {type_of(quantizer)}"
            yield view.breach(quantizer, found, "a zero point that says the type")


def find_readers(view: TargetView, rule: rules.OneReader) -> Iterator[Breach]:
    """Find quantized activations that more than one operator reads."""
    for quantizer in view.of_role("activation"):
        if quantizer.node.op_type not in QUANTIZERS or type_of(quantizer) not in rule.types:
            continue
        uses = [use for value in quantizer.node.outputs for use in value.uses()]
        readers = [reader for use in uses for v in use.node.outputs for reader in v.uses()]
        if len(readers) > 1:
            found = f"{len(readers)} readers of one {type_of(quantizer)} tensor"
            yield view.breach(quantizer, found, "one reader, or uint8")


def find_old_opset(view: TargetView, rule: rules.OpsetOfTypes) -> Iterator[Breach]:
    """Find that the opset is older than that of a number type."""
    opset = view.model.opset_imports.get("", 1)
    if opset >= rule.opset:
        return
    for quantizer in view.quantizers.found.values():
        standard = quantizer.node.domain in ("", "ai.onnx")
        if standard and type_of(quantizer) in rule.types:
            found = f"{type_of(quantizer)} at opset {opset}"
            yield view.breach(quantizer, found, f"opset {rule.opset} or com.microsoft")
            return


def find_foreign_opset(view: TargetView, rule: rules.OpsetRange) -> Iterator[Breach]:
    """Find that the opset is one that the target has no Q/DQ of."""
    opset = view.model.opset_imports.get("", 1)
    for quantizer in view.quantizers.found.values():
        if not rule.low <= opset <= rule.high:
            yield view.breach(quantizer, f"opset {opset}", f"{rule.low} to {rule.high}")
            return


def _uses(quantizer: Quantizer) -> list[tuple[ir.Node, int]]:
    return [(use.node, use.idx) for value in quantizer.node.outputs for use in value.uses()]
