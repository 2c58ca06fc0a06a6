"""Ranges that the graph fixes: of a Sigmoid or Softmax, and where every reader saturates.

What a hard-swish reads needs no levels below -3, however far below the values lie: all of them
give zero. The levels that are saved make the others finer. The outermost level lies at or beyond
the point of saturation: one just inside of it would give all the values beyond the same small
error, in the same direction.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bitwright.decide.ops import OPERATORS, bounds_of
from bitwright.graph.constants import constant_of, input_at, maker_of

_MARGIN = 1.1
"""Room beside the observed extremes for values that no sample had. All of the known range would
cost half of the levels of a Softmax that never exceeds 0.5."""


def known_range(value: ir.Value) -> tuple[float, float] | None:
    """Return the range that a tensor cannot leave, or None where its operator has none."""
    node = value.producer()
    rule = None if node is None else OPERATORS.get(node.op_type)
    while node is not None and rule is not None and rule.moves and rule.data == (0,):
        node = maker_of(node.inputs[0])
        rule = None if node is None else OPERATORS.get(node.op_type)
    if node is None or rule is None or rule.domain != node.domain:
        return None
    return rule.output_range


def fit_known_range(known: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    """Return what was observed and a tenth more, within the known range."""
    return max(known[0], _MARGIN * min(low, 0.0)), min(known[1], _MARGIN * max(high, 0.0))


_EVERYWHERE = (-math.inf, math.inf)


def saturation_points(value: ir.Value) -> tuple[float, float]:
    """Return the values below and above which no reader of a tensor tells any more apart."""
    if value.is_graph_output() or not value.uses():
        return _EVERYWHERE
    found = [_points(use.node, use.idx, value) for use in value.uses()]
    return min(low for low, _ in found), max(high for _, high in found)


def cut_saturated(
    low: float, high: float, points: tuple[float, float], steps: int
) -> tuple[float, float]:
    """Return a range without what lies a step beyond the points of saturation.

    A zero point is rounded, which moves all levels by up to half a step.
    """
    for _ in range(2):  # the step depends on both ends
        lower, upper = max(low, min(points[0], 0.0)), min(high, max(points[1], 0.0))
        step = (upper - lower) / (steps - 1)
        low = max(low, lower - step) if lower > low else low
        high = min(high, upper + step) if upper < high else high
    return low, high


def _points(reader: ir.Node, index: int, value: ir.Value) -> tuple[float, float]:
    if index == 0 and (own := _own_points(reader)) != _EVERYWHERE:
        return own
    if reader.op_type == "Mul" and not reader.domain:
        # x * gate(x): a gate that is shut leaves nothing of x, one that is open all of it.
        other = input_at(reader, 1 - index)
        return (_gate_shuts(other, value), math.inf) if other is not None else _EVERYWHERE
    shift, shifted = _shift_of(reader), reader.outputs[0]
    if shift is not None and not shifted.is_graph_output() and len(shifted.uses()) == 1:
        (use,) = shifted.uses()
        low, high = _own_points(use.node)
        return low - shift, high - shift
    return _EVERYWHERE


def _own_points(node: ir.Node) -> tuple[float, float]:
    rule = OPERATORS.get(node.op_type)
    if rule is None or rule.domain != node.domain:
        return _EVERYWHERE
    if rule.saturates is not None:
        return rule.saturates(node)
    return bounds_of(node) or _EVERYWHERE


def _gate_shuts(gate: ir.Value, value: ir.Value) -> float:
    """Return below which values of a tensor a gate that is computed from it is zero."""
    node = gate.producer()
    source = input_at(node, 0) if node is not None else None
    if node is None or source is None or not _is_zero_when_shut(node):
        return -math.inf
    low, _ = _own_points(node)
    if source is value:
        return low
    adding = source.producer()
    shift = _shift_of(adding) if adding is not None and value in adding.inputs else None
    return -math.inf if shift is None else low - shift


def _is_zero_when_shut(node: ir.Node) -> bool:
    rule = OPERATORS.get(node.op_type)
    is_gate = rule is not None and rule.is_gate
    return is_gate or bounds_of(node) in {(0.0, 6.0), (0.0, 1.0)}


def _shift_of(node: ir.Node) -> float | None:
    """Return the one number that a node adds."""
    if node.op_type != "Add" or node.domain:
        return None
    arrays = [constant_of(given) for given in node.inputs]
    found = [array for array in arrays if array is not None and array.size == 1]
    return float(found[0].reshape(-1)[0]) if len(found) == 1 else None
