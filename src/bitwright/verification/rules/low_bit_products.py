"""MatMulNBits: the bits and blocks of its weights that a target has a kernel for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec
import onnx_ir as ir

from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph.constants import input_at
from bitwright.recipe import Recipe
from bitwright.verification.rules.rule import Ask, Breaches, Rule


class LowBitProducts(Rule, frozen=True, kw_only=True):
    """MatMulNBits: bits, blocks, and what else of it there is a kernel for."""

    ops: ClassVar[tuple[str, ...]] = ("MatMulNBits",)
    asks: str = "low_bit_products"
    bits: tuple[int, ...] = ()
    """None: it is not taken at all."""
    blocks: tuple[int, ...] = ()
    """None: any."""
    group_index: bool = False
    """Whether rows may be in another order (g_idx)."""
    float_zero_points: bool = False
    """Whether zero points may be floats."""
    levels: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Bits -> the accuracy levels that there are kernels for; all others are unpacked first."""
    blocks_of: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Bits -> their blocks, where these are fewer."""


def _without_kernel(rule: LowBitProducts, view: QuantizedView, node: ir.Node) -> Breaches:
    bits = node.attributes.get_int("bits", 4)
    block = node.attributes.get_int("block_size", 0)
    level = node.attributes.get_int("accuracy_level", 0)
    blocks_of, levels = rule.blocks_of.get(str(bits)), rule.levels.get(str(bits))
    if bits not in rule.bits:
        yield f"weights of {bits} bits in blocks", _any_of(rule.bits) or "none"
    elif rule.blocks and block not in rule.blocks:
        yield f"blocks of {block}", _any_of(rule.blocks)
    elif blocks_of is not None and block not in blocks_of:
        yield f"{bits} bits in blocks of {block}", _any_of(blocks_of)
    elif levels is not None and level not in levels:
        yield f"{bits} bits at accuracy_level {level}", _any_of(levels)
    elif not rule.group_index and input_at(node, 4) is not None:
        yield "rows in another order (g_idx)", "the order of the matrix"
    elif not rule.float_zero_points and _is_float(input_at(node, 3)):
        yield "zero points in float", "packed integers"


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def _any_of(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, numbers))


def _why_bits_unfit(rule: LowBitProducts, recipe: Recipe) -> str | None:
    bits = recipe.weights.bits
    if rule.consequence not in ("refused", "leaves") or bits in rule.bits:
        return None
    if not recipe.weights.output.startswith("matmul-nbits"):
        return None
    return f"weights of {bits} bits, and not {_any_of(rule.bits)}"


LowBitProducts.ASKS = {
    "low_bit_products": Ask(node=_without_kernel, why_weights_unfit=_why_bits_unfit)
}
