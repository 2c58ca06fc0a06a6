"""Operators that the NPU computes as one, so that no Q/DQ pair stands between them."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from bitwright.decide.checks import has_channelwise_activations
from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import LINEAR_OPS, RULES
from bitwright.decide.ops.linear import BiasSum
from bitwright.graph.constants import maker_of
from bitwright.recipe import Recipe
from bitwright.targets.npu_operations import (
    FUSED_PRODUCERS,
    PADDED_POOLS,
    clip_bounds,
    is_simulation,
    only_reader,
)

# A hardware Relu stops at 6 or 1 for free; at no other number.
_FREE_CLIPS = ((0.0, 6.0), (0.0, 1.0))


def fused_reader(value: ir.Value, recipe: Recipe) -> ir.Node | None:
    """Return the node that is computed together with the one that makes this value, if any is."""
    reader, maker = only_reader(value), value.producer()
    if reader is None or maker is None or reader.graph is not maker.graph:
        return None
    if is_simulation(reader):
        return reader
    if recipe.limits is not None and maker.op_type == "Pad" and reader.op_type in PADDED_POOLS:
        return reader
    if (maker.op_type, reader.op_type) in recipe.emulate.fuse_pairs:
        return reader
    if reader.op_type not in recipe.place.fuse_activations or reader.inputs[0] is not value:
        return None
    if is_simulation(maker):
        maker = maker_of(maker.inputs[0])
    if maker is None or maker.op_type not in FUSED_PRODUCERS:
        return None
    if reader.op_type == "Clip" and clip_bounds(reader) not in _FREE_CLIPS:
        return None
    return reader


# A MatMul and the Add of a constant behind it --------------------------------------------------


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
