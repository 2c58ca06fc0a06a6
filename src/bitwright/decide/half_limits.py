"""Which nodes half floats cannot compute, whatever the data: what overflows, or counts, by form.

A square of more than 256 is beyond float16's 65504, and so is the exponential of 11.1; a mean of
squares brings them back below a root. Whole numbers are exact up to 2048 in float16 and 256 in
bfloat16, so that a position or a counter stands still beyond.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from bitwright.decide.ops import bounds_of, op_types
from bitwright.decide.ranges.known import known_range
from bitwright.graph import find_counters, is_float, reach, subgraphs_of
from bitwright.graph.constants import float_constant_of, input_at, is_constant, maker_of

COUNTS = "it counts, or makes angles of what counts: in half floats whole numbers end early"
SQUARES = "its squares or exponentials may exceed float16 (65504), and no data shows how large"

_TAMING = frozenset("Cos Erf Log Reciprocal Sin Sqrt".split())
"""Elementwise functions whose results are small whatever they read."""
_REDUCTIONS = frozenset("ReduceMax ReduceMean ReduceMin ReduceSum".split())
_STEPS = op_types(lambda op: op.elementwise or op.moves or op.pool) | _REDUCTIONS
_PRODUCTS = op_types(lambda op: op.linear) | {"Einsum"}
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
    is_divisor = node.op_type == "Div" and node.inputs[1] in wide
    if node.op_type not in _STEPS - _TAMING or is_divisor or wide.isdisjoint(node.inputs):
        return False
    return _bound(node.outputs[0]) > _LARGEST_SQUARED


def _takes_part(node: ir.Node) -> bool:
    return node.op_type not in _PRODUCTS | {"Shape", "Size"} and not list(subgraphs_of(node))


def _overflows(node: ir.Node) -> bool:
    """Return whether results of a node exceed 65504 for inputs that are not unusual."""
    x, other = input_at(node, 0), input_at(node, 1)
    if node.domain or not is_float(node.outputs[0]):
        return False
    if node.op_type == "Exp":
        return not _is_shifted_down(x) and _bound(x) > _LARGEST_EXPONENT
    if node.op_type == "Pow":
        exponent = None if is_constant(x) else float_constant_of(other)
        squares = exponent is not None and exponent.max() > 1 and not _saturates(node)
    else:
        is_square = node.op_type == "Mul" and x is other
        squares = is_square or node.op_type in ("ReduceL2", "ReduceSumSquare")
    return squares and _bound(x) > _LARGEST_SQUARED


def _bound(value: ir.Value | None) -> float:
    """Return the largest magnitude of a value, where the operator that makes it says so."""
    maker = maker_of(value)
    if value is None or maker is None:
        return math.inf
    ends = known_range(value) or bounds_of(maker) or (math.inf,)
    return max(map(abs, ends))


def _is_shifted_down(value: ir.Value | None) -> bool:
    """Return whether a value is what is left of a tensor below its largest number."""
    node = maker_of(value)
    if node is None or node.op_type != "Sub":
        return False
    whole, largest = node.inputs
    maker = maker_of(largest)
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
        known = _STEPS | _COUNTING | _PRODUCTS
        return [one for one in found if one is not None and one.op_type in known]

    angles: set[ir.Node] = set()
    for end in nodes:
        is_angle = end.op_type in ("Cos", "Sin")
        if not is_angle and not (end.op_type == "Cast" and _is_whole(end.outputs[0])):
            continue
        above = reach([end], makers)
        # An angle may also be made of what callers give, such as a time or coordinates.
        given = (v for one in above for v in one.inputs if is_angle and v and v.is_graph_input())
        if any(given) or any(
            one.op_type in _COUNTING or (one.op_type == "Cast" and _is_whole(one.inputs[0]))
            for one in above
        ):
            angles |= {*above}
    return angles


def _is_whole(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_integer()
