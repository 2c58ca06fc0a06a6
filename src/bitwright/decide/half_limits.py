"""Which nodes half floats cannot compute, whatever the data: what overflows, or counts, by form.

A square of more than 256 is beyond float16's 65504, and so is the exponential of 11.1; a mean of
squares brings them back below a root. Whole numbers are exact up to 2048 in float16 and 256 in
bfloat16, so that a position or a counter stands still beyond.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from bitwright.decide.ops import OPERATORS, bounds_of, op_types
from bitwright.graph.constants import float_constant_of, input_at
from bitwright.graph.half_ops import find_counters, is_float
from bitwright.graph.subgraphs import reach, subgraphs_of

COUNTS = "it counts, or makes angles of what counts: in half floats whole numbers end early"
SQUARES = "its squares or exponentials may exceed float16 (65504), and no data shows how large"

_REDUCTIONS = frozenset("ReduceMax ReduceMean ReduceMin ReduceSum".split())
_TAMING = frozenset("Cos Erf Log Reciprocal Sin Sqrt".split())
"""Elementwise functions whose results are small whatever they read."""
_STEPS = op_types(lambda op: op.elementwise or op.moves or op.pool) | _REDUCTIONS
_CARRIERS = _STEPS - _TAMING
_MOVES = op_types(lambda op: op.moves and op.data == (0,))
_SIZES = frozenset({"Shape", "Size"})
_COUNTING = frozenset({"CumSum", "Range"})
_LARGEST_SQUARED, _LARGEST_EXPONENT = 255.0, 11.0


def find_unfit(
    model: ir.Model, kind: str, observed: Collection[ir.Value] = ()
) -> dict[ir.Node, str]:
    """Return the nodes of a model that stay float32, and why.

    Values that were `observed` are known not to overflow, or to.
    """
    nodes, seen = list(model.graph.all_nodes()), {*observed}
    counting = {node for node in nodes if node.op_type in _COUNTING and is_float(node.outputs[0])}
    counting |= {made for node in nodes for made in find_counters(node).values()}
    unfit = _find_angles(nodes) | counting | _reach_small(nodes, counting)
    found = dict.fromkeys((node for node in nodes if node in unfit), COUNTS)
    if kind == "float16":
        large = {node for node in nodes if _overflows(node) and seen.isdisjoint(node.outputs)}
        unfit = _reach_small(nodes, large)
        found = dict.fromkeys((node for node in nodes if node in unfit), SQUARES) | found
    return found


def _reach_small(nodes: list[ir.Node], sources: set[ir.Node]) -> set[ir.Node]:
    """Return the nodes from sources of large numbers to those that make them small again.

    What reaches a product of matrices, or nothing that makes it small, is rounded there anyway.
    """
    wide: set[ir.Value | None] = set()
    for node in nodes:
        is_root = node.op_type == "ReduceL2"  # of squares, which it makes small itself
        if (node in sources and not is_root) or _carries(node, wide):
            wide.update(node.outputs)
    useful: set[ir.Node] = set()
    for node in reversed(nodes):
        if wide.isdisjoint(node.outputs):
            is_useful = node in sources or (_takes_part(node) and not wide.isdisjoint(node.inputs))
        else:
            is_useful = any(
                value.is_graph_output() or not useful.isdisjoint(value.consumers())
                for value in node.outputs
            )
        if is_useful:
            useful.add(node)
    return useful


def _carries(node: ir.Node, wide: set[ir.Value | None]) -> bool:
    """Return whether numbers of a node are as large as those that it reads."""
    if node.op_type not in _CARRIERS or not _takes_part(node) or _bound(node) <= _LARGEST_SQUARED:
        return False
    is_divisor = node.op_type == "Div" and node.inputs[1] in wide
    return not is_divisor and not wide.isdisjoint(node.inputs)


def _takes_part(node: ir.Node) -> bool:
    rule = OPERATORS.get(node.op_type)
    is_linear = node.op_type == "Einsum" or bool(rule and rule.linear)
    return not is_linear and node.op_type not in _SIZES and not list(subgraphs_of(node))


def _overflows(node: ir.Node) -> bool:
    """Return whether results of a node exceed 65504 for inputs that are not unusual."""
    x, other = input_at(node, 0), input_at(node, 1)
    if node.domain or not is_float(node.outputs[0]):
        return False
    if node.op_type == "Exp":
        return not (_is_shifted_down(x) or _at_most(x, _LARGEST_EXPONENT))
    if node.op_type == "Pow":
        exponent = float_constant_of(other)
        is_power = float_constant_of(x) is None and exponent is not None and exponent.max() > 1
        return is_power and not (_at_most(x, _LARGEST_SQUARED) or _saturates(node))
    squares = node.op_type in ("ReduceL2", "ReduceSumSquare") or (
        node.op_type == "Mul" and x is other
    )
    return squares and not _at_most(x, _LARGEST_SQUARED)


def _at_most(value: ir.Value | None, limit: float) -> bool:
    """Return whether the operator that makes a value bounds its magnitude."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _MOVES:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node is not None and _bound(node) <= limit


def _bound(node: ir.Node) -> float:
    """Return the largest magnitude that an operator gives, where its form says it."""
    rule = OPERATORS.get(node.op_type)
    ends = bounds_of(node) or (None if rule is None else rule.output_range)
    return math.inf if ends is None else max(map(abs, ends))


def _is_shifted_down(value: ir.Value | None) -> bool:
    """Return whether a value is what is left of a tensor below its largest number."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Sub":
        return False
    whole, largest = node.inputs
    maker = None if largest is None else largest.producer()
    return maker is not None and maker.op_type == "ReduceMax" and maker.inputs[0] is whole


def _saturates(node: ir.Node) -> bool:
    """Return whether an infinite power ends in a Tanh, where it is right, as in a Gelu's cube."""
    while node.op_type != "Tanh":
        readers = node.outputs[0].consumers()
        if len(readers) != 1 or readers[0].op_type not in ("Add", "Mul", "Tanh"):
            return False
        node = readers[0]
    return True


def _find_angles(nodes: list[ir.Node]) -> set[ir.Node]:
    """Return the nodes between positions or times and the angles or indices that they become."""

    def makers(node: ir.Node) -> list[ir.Node]:
        found = [value.producer() for value in node.inputs if is_float(value)]
        return [one for one in found if one is not None and _makes_angles(one)]

    angles: set[ir.Node] = set()
    for end in nodes:
        is_angle = end.op_type in ("Cos", "Sin")
        if not is_angle and not (end.op_type == "Cast" and _is_whole(end.outputs[0])):
            continue
        above = reach([end], makers)
        if any(_counts(one) or (is_angle and _reads_input(one)) for one in above):
            angles |= {*above}
    return angles


def _makes_angles(node: ir.Node) -> bool:
    rule = OPERATORS.get(node.op_type)
    is_product = node.op_type == "Einsum" or (rule is not None and rule.linear == "matrix")
    return node.op_type in _STEPS | _COUNTING or is_product


def _counts(node: ir.Node) -> bool:
    """Return whether a node makes floats of integers."""
    return node.op_type in _COUNTING or (node.op_type == "Cast" and _is_whole(node.inputs[0]))


def _is_whole(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def _reads_input(node: ir.Node) -> bool:
    """Return whether a node reads what callers give, such as a time or coordinates."""
    return any(value is not None and value.is_graph_input() for value in node.inputs)
