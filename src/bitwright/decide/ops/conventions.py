"""Operators that other tools quantize by other rules than ours, as changed rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitwright.decide.ops import RULES, OpRule, rule_of
from bitwright.recipe import Recipe

__all__ = ["rule_for"]

_PAIRS: dict[str, dict[str, Any]] = {
    "ArgMax": {"needs_quantized_input": False},
    "AveragePool": {"keeps_scale": True},
    # The value that fills is quantized, too.
    "Pad": {"data": (0, 2), "needs_quantized_input": False, "min_opset": 10},
    "Split": {"needs_quantized_input": False},
}
_INTEGER_OPS: dict[str, dict[str, Any]] = {
    "ArgMax": {"is_forced": False},
    "AveragePool": {"needs_quantized_input": False},
    "GlobalAveragePool": {"needs_quantized_input": True, "is_forced": False},
    # The value that fills is rounded with the scale of what is filled.
    "Pad": {"keeps_scale": True, "is_forced": False},
    "Split": {"needs_quantized_input": False},
    "Where": {"only_forced": True},
    **{
        op_type: {"is_forced": False}
        for op_type in ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "MaxPool")
    },
}
_CLIPS = {op_type: {"is_forced": False} for op_type, rule in RULES.items() if rule.bounds}

# Of all known ranges, other tools fix that of a Softmax.
_OBSERVED = {
    op_type: replace(rule, output_range=None)
    for op_type, rule in RULES.items()
    if rule.output_range is not None and op_type != "Softmax"
}

_ONNXRUNTIME = {
    integer_ops: {
        op_type: replace(RULES[op_type], **changes) for op_type, changes in (rows | _CLIPS).items()
    }
    for integer_ops, rows in ((False, _PAIRS), (True, _INTEGER_OPS))
}


def rule_for(op_type: str, recipe: Recipe) -> OpRule:
    """Return how a recipe quantizes an operator.

    >>> from bitwright.recipe import Emulation
    >>> recipe = Recipe(emulate=Emulation(conventions="onnxruntime"))
    >>> rule_for("AveragePool", recipe).keeps_scale, rule_for("AveragePool", Recipe()).keeps_scale
    (True, False)
    """
    if recipe.emulate.conventions == "onnxruntime":
        rows = _ONNXRUNTIME[recipe.output_format.integer_ops]
        if op_type in rows:
            return rows[op_type]
    if not recipe.emulate.known_ranges and op_type in _OBSERVED:
        return _OBSERVED[op_type]
    return rule_of(op_type)
