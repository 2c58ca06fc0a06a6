"""Products whose sizes gain nothing from integers, so that they are better left float."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops.product_sizes import is_first, why_too_small
from bitwright.decide.ops.quantized_view import QuantizedView
from bitwright.graph import input_at, sizes_of
from bitwright.recipe import Recipe, SizeRule, SmallProducts
from bitwright.verification.rules.rule import Ask, Breaches, Changes, Rule


class ProductSizes(Rule, frozen=True, kw_only=True):
    """Products of `small_products`, `convolution_sizes` or `attention_sizes` are left float."""

    sizes: SizeRule
    """As a recipe has them, which leaves such products float."""


def _better_float(rule: ProductSizes, view: QuantizedView, node: ir.Node) -> Breaches:
    types = () if isinstance(rule.sizes, SmallProducts) else rule.sizes.types
    source = view.quantizer_before(node, 0)
    if source is None or (types and source.type_name not in types):
        return
    read, weight = (_sizes(view, node, index) for index in (0, 1))
    found = why_too_small(node, rule.sizes, read, weight, first=is_first(node))
    if found is not None:
        yield found


def _sizes(view: QuantizedView, node: ir.Node, index: int) -> list[int | None] | None:
    """Return the sizes of a factor; what a dequantizer gives has those of what it reads."""
    value, stored = input_at(node, index), view.quantizer_before(node, index)
    if stored is not None and (value is None or value.shape is None):
        value = stored.node.inputs[0]
        maker = None if value is None else value.producer()
        if value is not None and value.shape is None and maker in view.found:
            assert maker is not None
            value = maker.inputs[0]
    return sizes_of(value)


def _leave_float(rule: ProductSizes, recipe: Recipe) -> Changes:
    known = recipe.select.sizes
    return {} if rule.sizes in known else {"select": {"sizes": (*known, rule.sizes)}}


ProductSizes.ASKS = dict.fromkeys(
    ("small_products", "convolution_sizes", "attention_sizes"),
    Ask(node=_better_float, change=_leave_float),
)
