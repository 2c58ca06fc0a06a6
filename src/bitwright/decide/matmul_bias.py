"""A MatMul and the constant that an Add puts on top: what the runtime makes of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from bitwright.decide.checks import has_channelwise_activations
from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import LINEAR_OPS, RULES
from bitwright.graph import static_shape
from bitwright.graph.constants import is_constant
from bitwright.recipe import Recipe


@dataclass(frozen=True, slots=True)
class BiasSum:
    """An Add of a constant that is the only reader of a MatMul's result."""

    product: ir.Node
    node: ir.Node
    index: int
    """Which input of the Add is the constant."""

    @property
    def bias(self) -> ir.Value:
        """The constant."""
        value = self.node.inputs[self.index]
        assert value is not None
        return value

    @property
    def may_become_gemm(self) -> bool:
        """Whether ONNX Runtime may compute both as one Gemm, before it looks at any Q/DQ pair.

        It does so for a matrix times a matrix plus one number a column, and for stacks of
        matrices once all their dimensions are known: to it, which may know more than we do, or
        is told by its user. Where nothing quantizes the sum, its integer Gemm takes the numbers
        in int32 only, and floats would keep the whole product in float. In a sum that stays an
        Add, int32 costs next to nothing.
        """
        left, right = self.product.inputs
        if left is None or right is None or right.shape is None or len(right.shape) != 2:
            return False
        columns = right.shape[1]
        is_matrix = left.shape is None or len(left.shape) == 2
        shape = static_shape(self.bias)
        return shape == (columns,) or (is_matrix and shape == (1, columns))


def bias_sum_behind(product: ir.Node) -> BiasSum | None:
    """Return the sum that alone reads what a MatMul computes, if it is one with a constant."""
    if product.op_type != "MatMul" or product.outputs[0].is_graph_output():
        return None
    uses = product.outputs[0].uses()
    if len(uses) != 1:
        return None
    node, index = next(iter(uses))
    if node.op_type != "Add" or not is_constant(node.inputs[1 - index]):
        return None
    return BiasSum(product, node, 1 - index)


def bias_sum_of(node: ir.Node) -> BiasSum | None:
    """Return what an Add is part of, if it puts a constant on top of a MatMul."""
    makers = (value.producer() for value in node.inputs if value is not None)
    sums = (bias_sum_behind(maker) for maker in makers if maker is not None)
    return next((found for found in sums if found is not None and found.node is node), None)


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
