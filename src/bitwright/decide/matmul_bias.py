"""A MatMul and the constant that an Add puts on top: what the runtime makes of the two."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from bitwright.decide.checks import has_channelwise_activations
from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import LINEAR_OPS, RULES
from bitwright.decide.ops.linear import BiasSum
from bitwright.recipe import Recipe


def stores_added_biases(recipe: Recipe) -> bool:
    """Whether the constants of such sums are stored as integers, where that is of use.

    In the format qoperator the product is an integer one in any case, and adds floats.
    """
    plain = recipe.output_format.standard_pairs and recipe.quantize_bias and recipe.bias == "int32"
    return plain and not has_channelwise_activations(recipe)


def enter_added_bias(layout: Layout, found: BiasSum, name: str) -> str | None:
    """Enter the constant as the int32 bias of an 8-bit Gemm; None where there is none."""
    plan = layout.nodes.get(found.product.name or "")
    if plan is None or plan.action != "quantize" or None in plan.inputs:
        return None
    source, weight = (key or "" for key in plan.inputs)
    kinds = [layout.entries[key].qtype for key in (source, weight)]
    if any(not kind.is_integer or kind.bits != 8 for kind in kinds) or not found.may_become_gemm:
        return None
    return layout.enter_bias(name, found.bias, found.node, RULES["Gemm"], (source, weight))


def ends_in_product(value: ir.Value, is_wanted: Callable[[ir.Node], bool]) -> bool:
    """Whether a product reads a tensor, or what is left of it after moving and clipping.

    Then its values are rounded anyway, and best at once: fewer bytes are moved, and the
    quantizer clips for free. `is_wanted` says which nodes are quantized.
    """
    uses = value.uses()
    if value.is_graph_output():
        return False
    if any(_multiplies(use.node, use.idx) and is_wanted(use.node) for use in uses):
        return True
    if len(uses) != 1:
        return False
    reader, index = next(iter(uses))
    rule = RULES.get(reader.op_type)
    if rule is None or index or not (rule.keeps_scale or rule.bounds) or not is_wanted(reader):
        return False
    return all(ends_in_product(result, is_wanted) for result in reader.outputs if result.uses())


def _multiplies(node: ir.Node, index: int) -> bool:
    return node.op_type in LINEAR_OPS and index != RULES[node.op_type].bias
