"""Rules of a target about products: their sizes, and weights of few bits or in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from bitwright.decide.ops.product_sizes import is_first, why_too_small
from bitwright.graph.constants import input_at
from bitwright.graph.quantized_ops import QUANTIZERS
from bitwright.graph.quantizers import Quantizer, name_of
from bitwright.targets import rules
from bitwright.verification.view import Breach, TargetView, type_names, type_of

__all__ = [
    "find_blocked_products",
    "find_low_bit_products",
    "find_partial_weights",
    "find_small_products",
    "find_untransposed",
]


def find_small_products(view: TargetView, rule: rules.SizeRule) -> Iterator[Breach]:
    """Find quantized products that are too small, or too large, to gain anything."""
    for node in view.nodes:
        source = view.quantizers.quantizer_before(node, 0)
        types = () if isinstance(rule, rules.SmallProducts) else rule.types
        if source is None or (types and type_of(source) not in types):
            continue
        read, weight = (_sizes(view, node, index) for index in (0, 1))
        found = why_too_small(node, rule, read, weight, first=is_first(node))
        if found is not None:
            yield Breach(name_of(node), *found)


def _sizes(view: TargetView, node: ir.Node, index: int) -> list[int | None] | None:
    """Return the sizes of a factor; what a dequantizer gives has those of what it reads."""
    value, stored = input_at(node, index), view.quantizers.quantizer_before(node, index)
    if stored is not None and (value is None or value.shape is None):
        value = stored.node.inputs[0]
        maker = None if value is None else value.producer()
        if value is not None and value.shape is None and maker in view.quantizers.found:
            assert maker is not None
            value = maker.inputs[0]
    if value is None or value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def find_low_bit_products(view: TargetView, rule: rules.LowBitProducts) -> Iterator[Breach]:
    """Find products of weights in blocks that there is no kernel for."""
    for node in view.of_types(("MatMulNBits",)):
        bits = node.attributes.get_int("bits", 4)
        block = node.attributes.get_int("block_size", 0)
        level = node.attributes.get_int("accuracy_level", 0)
        if bits not in rule.bits:
            allowed = " or ".join(map(str, rule.bits))
            yield Breach(name_of(node), f"weights of {bits} bits in blocks", allowed or "none")
        elif rule.blocks and block not in rule.blocks:
            allowed = " or ".join(map(str, rule.blocks))
            yield Breach(name_of(node), f"blocks of {block}", allowed)
        elif block not in rule.blocks_of.get(str(bits), (block,)):
            allowed = " or ".join(map(str, rule.blocks_of[str(bits)]))
            yield Breach(name_of(node), f"{bits} bits in blocks of {block}", allowed)
        elif level not in rule.levels.get(str(bits), (level,)):
            allowed = " or ".join(map(str, rule.levels[str(bits)]))
            yield Breach(name_of(node), f"{bits} bits at accuracy_level {level}", allowed)
        elif not rule.group_index and input_at(node, 4) is not None:
            yield Breach(name_of(node), "rows in another order (g_idx)", "the order of the matrix")
        elif not rule.float_zero_points and _is_float(input_at(node, 3)):
            yield Breach(name_of(node), "zero points in float", "packed integers")


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def find_blocked_products(view: TargetView, rule: rules.BlockedProducts) -> Iterator[Breach]:
    """Find weights in blocks beside activations that there is no kernel for."""
    for quantizer in _weights(view):
        block = quantizer.node.attributes.get_int("block_size", 0)
        if not block or quantizer.scale is None:
            continue  # scales that are stored in few bits have a rule of their own
        step = rule.multiples.get(type_of(quantizer) or "")
        if step is None or block % step:
            words = f"multiples of {step}" if step else type_names(tuple(rule.multiples))
            yield view.breach(quantizer, f"{type_of(quantizer)} in blocks of {block}", words)
            continue
        for reader in _readers(quantizer):
            beside = {type_of(q) for q in (*view.activations(reader), *view.behind(reader))}
            if reader.op_type not in rule.ops:
                found = f"a weight of {reader.op_type} in blocks"
                yield view.breach(quantizer, found, f"weights of {type_names(rule.ops)}")
            elif not beside or beside - {*rule.activation}:
                found = f"blocks beside {' and '.join(sorted(map(str, beside))) or 'floats'}"
                yield view.breach(quantizer, found, type_names(rule.activation))


def find_partial_weights(view: TargetView, rule: rules.WholeUnits) -> Iterator[Breach]:
    """Find stored weights that are read beside float activations."""
    for quantizer in _weights(view):
        if type_of(quantizer) not in rule.types:
            continue
        if any(not view.activations(reader) for reader in _readers(quantizer)):
            found = f"a weight of {type_of(quantizer)} beside float activations"
            yield view.breach(quantizer, found, "pairs on all sides")


def find_untransposed(view: TargetView, rule: rules.TransposedWeights) -> Iterator[Breach]:
    """Find weights of matrix products that are stored as (inputs, outputs)."""
    for quantizer in _weights(view):
        if type_of(quantizer) not in rule.types:
            continue
        for reader in _readers(quantizer):
            plain = reader.op_type == "Gemm" and not reader.attributes.get_int("transB", 0)
            if plain or reader.op_type == "MatMul":
                found = f"a weight of {type_of(quantizer)} as (inputs, outputs)"
                yield view.breach(quantizer, found, "(outputs, inputs), and a Transpose behind it")


def _weights(view: TargetView) -> Iterator[Quantizer]:
    """Return the dequantizers of stored weights."""
    for quantizer in view.of_role("weight"):
        if quantizer.node.op_type not in QUANTIZERS:
            yield quantizer


def _readers(quantizer: Quantizer) -> list[ir.Node]:
    return [use.node for value in quantizer.node.outputs for use in value.uses()]
