"""The facts of every operator: one visible table, one row per operator, read by every stage."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from bitwright.decide.ops.compute import COMPUTE_RULES
from bitwright.decide.ops.elementwise import ELEMENTWISE_RULES
from bitwright.decide.ops.movement import MOVEMENT_RULES
from bitwright.decide.ops.rule import OpRule, Skip

__all__ = [
    "CONVOLUTIONS",
    "DEFAULT_OP_TYPES",
    "LINEAR_OPS",
    "MATRIX_PRODUCTS",
    "OPERATORS",
    "PLACED_OP_TYPES",
    "RULES",
    "OpRule",
    "Skip",
    "bounds_of",
    "op_types",
    "rule_of",
    "takes_blocks",
]

OPERATORS = {rule.op_type: rule for rule in (*COMPUTE_RULES, *MOVEMENT_RULES, *ELEMENTWISE_RULES)}
"""Every operator of which something is known."""

RULES = {op_type: rule for op_type, rule in OPERATORS.items() if rule.quantizable}
"""Those that have a rule for quantization."""


def op_types(fact: Callable[[OpRule], object]) -> frozenset[str]:
    """Return the operators of which something is true."""
    return frozenset(op_type for op_type, rule in OPERATORS.items() if fact(rule))


def rule_of(op_type: str) -> OpRule:
    """Return how an operator is quantized; one without a rule gets a pair at every float tensor."""
    return RULES.get(op_type) or OpRule(op_type)


def bounds_of(node: ir.Node) -> tuple[float, float] | None:
    """Return to which constant bounds a node clips; None where it does not, or does more."""
    rule = OPERATORS.get(node.op_type)
    return None if rule is None or rule.bounds is None else rule.bounds(node)


def takes_blocks(node: ir.Node) -> bool:
    """Return whether there is an operator for a node that reads its weights in low-bit blocks."""
    rule = OPERATORS.get(node.op_type)
    return rule is not None and rule.block_op is not None and rule.domain == node.domain


DEFAULT_OP_TYPES = op_types(lambda op: op.quantizable and op.by_default)
PLACED_OP_TYPES = DEFAULT_OP_TYPES | op_types(lambda op: op.has_form)
"""Those quantized by default where integers are placed by cost."""
LINEAR_OPS = op_types(lambda op: op.linear)
CONVOLUTIONS = op_types(lambda op: op.linear == "convolution")
MATRIX_PRODUCTS = op_types(lambda op: op.linear == "matrix")
