"""Ranges that the maths fixes: of a Sigmoid, a Softmax, a Tanh, wherever their values are moved."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import OPERATORS

__all__ = ["fit_known_range", "known_range"]

_MARGIN = 1.1
"""Room beside the observed extremes for values that no sample had. All of the known range would
cost half of the levels of a Softmax that never exceeds 0.5."""


def known_range(value: ir.Value) -> tuple[float, float] | None:
    """Return the range that a tensor cannot leave, or None where its operator has none.

    >>> x, y, z = (ir.val(name, ir.DataType.FLOAT, [4]) for name in "xyz")
    >>> nodes = ir.node("Tanh", [x], outputs=[y]), ir.node("Transpose", [y], outputs=[z])
    >>> known_range(z)
    (-1.0, 1.0)
    """
    node = value.producer()
    rule = None if node is None else OPERATORS.get(node.op_type)
    while node is not None and rule is not None and rule.moves and rule.data == (0,):
        source = node.inputs[0]
        node = None if source is None else source.producer()
        rule = None if node is None else OPERATORS.get(node.op_type)
    if node is None or rule is None or rule.domain != node.domain:
        return None
    return rule.output_range


def fit_known_range(known: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    """Return what was observed and a tenth more, within the known range.

    >>> fit_known_range((0.0, 1.0), 0.1, 0.95), fit_known_range((-1.0, 1.0), -0.5, 0.25)
    ((0.0, 1.0), (-0.55, 0.275))
    """
    return max(known[0], _MARGIN * min(low, 0.0)), min(known[1], _MARGIN * max(high, 0.0))
