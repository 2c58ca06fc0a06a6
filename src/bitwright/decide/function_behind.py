"""The activation function behind a layer, written as one operator or in several."""

from __future__ import annotations

import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.graph.constants import is_constant

_POINTWISE = op_types(lambda op: op.activation and op.elementwise)


def function_behind(value: ir.Value) -> ir.Value:
    """Return what the activation function behind a tensor gives, the tensor itself if none does.

    The function reads nothing but this tensor and constants, and nobody reads what lies inside it:
    a Relu, `x * Sigmoid(x)`, the Add of a bias with a Gelu in pieces behind it.
    """
    inside: dict[ir.Value, None] = {value: None}
    found = value
    waiting = True
    while waiting:
        waiting = False
        for use in [use for known in inside for use in known.uses()]:
            node = use.node
            if node.graph is not value.graph or node.outputs[0] in inside:
                continue
            if not _is_pointwise(node, inside, value.shape):
                continue
            inside[node.outputs[0]] = None
            waiting = True
        leaving = [known for known in inside if _leaves(known, inside)]
        if len(leaving) == 1:
            found = leaving[0]
    return found


def _is_pointwise(node: ir.Node, inside: dict[ir.Value, None], shape: ir.Shape | None) -> bool:
    if node.op_type not in _POINTWISE or node.domain or len(node.outputs) != 1:
        return False
    return all(
        given is None or given in inside or (is_constant(given) and _keeps_shape(given, shape))
        for given in node.inputs
    )


def _keeps_shape(constant: ir.Value, shape: ir.Shape | None) -> bool:
    """Whether a constant makes a tensor of this shape no larger where both are broadcast."""
    own = constant.shape
    if own is None or (shape is not None and len(own) > len(shape)):
        return False
    if all(size == 1 for size in own):
        return shape is not None or not len(own)
    if shape is None:
        return False
    pairs = zip(reversed(list(own)), reversed(list(shape)), strict=False)
    return all(size in (1, wanted) for size, wanted in pairs)


def _leaves(value: ir.Value, inside: dict[ir.Value, None]) -> bool:
    if value.is_graph_output() or not value.uses():
        return True
    return any(use.node.outputs[0] not in inside for use in value.uses())
