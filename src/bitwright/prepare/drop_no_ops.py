"""Drop nodes that return what they read: x * 1, x / 1, x + 0, x - 0, x ** 1, x[:] and Identity."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import OPERATORS
from bitwright.decide.ops.matching import least_rank
from bitwright.graph import remove_nodes, replace_value, sizes_of
from bitwright.graph.constants import constant_of, constant_tensor, input_at, is_constant
from bitwright.prepare.passes import Scope, rewrites

_NEUTRAL = {op.op_type: op.neutral for op in OPERATORS.values() if op.neutral is not None}

_MAX_INT32 = 2**31 - 1
"""The end of a Slice that goes to the end of an axis of any size; some write that of int64."""


@rewrites("Identity", "Slice", *_NEUTRAL, since=7)
def drop_no_ops(node: ir.Node, names: Scope) -> bool:
    """Drop every node whose output is its input.

    Graph inputs and outputs keep their names, so a node between an input and an output stays. One
    also stays where its constant could give the tensor more dimensions.
    """
    value = _unchanged(node)
    if value is None or node.graph is None:
        return False
    output = node.outputs[0]
    if output.is_graph_output():
        # The value must take over the name, which it can only where its own is nobody's concern.
        producer = value.producer()
        if producer is None or producer.graph is not node.graph or value.is_graph_output():
            return False
        replace_value(output, value)
    else:
        output.replace_all_uses_with(value)
    remove_nodes([node])
    return True


def _unchanged(node: ir.Node) -> ir.Value | None:
    """Return the input that a node returns as it is."""
    if node.op_type == "Identity":
        return node.inputs[0]
    if node.op_type == "Slice":
        return node.inputs[0] if _takes_everything(node) else None
    neutral, places = _NEUTRAL[node.op_type]
    for index in places:
        constant, value = node.inputs[index], node.inputs[1 - index]
        tensor = constant_tensor(constant)
        if tensor is None or tensor.size != 1 or len(tensor.shape) > least_rank(value):
            continue
        if tensor.numpy().reshape(-1)[0] == neutral:
            return value
    return None


def _takes_everything(node: ir.Node) -> bool:
    """Return whether a Slice begins at the front of each axis and ends behind its last place."""
    given = [input_at(node, index) for index in range(1, 5)]
    if not all(value is None or is_constant(value) for value in given):
        return False
    starts, ends, axes, steps = map(constant_of, given)
    if starts is None or ends is None or starts.any() or (steps is not None and (steps != 1).any()):
        return False
    sizes = sizes_of(node.inputs[0])
    places = range(ends.size) if axes is None else axes
    behind = [_MAX_INT32 if sizes is None else sizes[axis] or _MAX_INT32 for axis in places]
    return bool((ends >= behind).all())
