"""The operator rules: one visible table, one small value an operator."""

from __future__ import annotations

from bitwright.decide.ops.compute import COMPUTE_RULES
from bitwright.decide.ops.elementwise import ELEMENTWISE_RULES
from bitwright.decide.ops.movement import MOVEMENT_RULES
from bitwright.decide.ops.rule import OpRule, Skip, generic_rule

__all__ = ["DEFAULT_OP_TYPES", "RULES", "OpRule", "Skip", "generic_rule"]

RULES = {rule.op_type: rule for rule in (*COMPUTE_RULES, *MOVEMENT_RULES, *ELEMENTWISE_RULES)}

DEFAULT_OP_TYPES = frozenset(rule.op_type for rule in RULES.values() if rule.by_default)
