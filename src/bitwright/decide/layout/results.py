"""Results that leave the model, such as class scores: nothing of their range is clipped.

What a range method clips inside a model costs a little in what is computed from it. Of the scores
that leave the model the largest are the answer, and all that are clipped become the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import OPERATORS
from bitwright.graph import reach
from bitwright.graph.constants import is_constant

__all__ = ["leaves_model", "mark_results"]


def mark_results(layout: Layout, nodes: Iterable[ir.Node]) -> None:
    """Mark the entries that nodes write as integers, and whose values leave the model."""
    for node in nodes:
        plan = layout.nodes[node.name or ""]
        for value, key in zip(node.outputs, plan.outputs, strict=True):
            if key is not None and leaves_model(value):
                layout.entries[layout.root(key)].leaves_model = True


def leaves_model(value: ir.Value) -> bool:
    """Return whether an output of the model is a function of this tensor alone, without weights.

    >>> x, y, z = (ir.val(name, ir.DataType.FLOAT, [1, 4]) for name in "xyz")
    >>> nodes = [ir.node("Flatten", [x], outputs=[y]), ir.node("Softmax", [y], outputs=[z])]
    >>> graph = ir.Graph([x], [z], nodes=nodes, opset_imports={"": 21})
    >>> leaves_model(x)
    True
    """
    return any(known.is_graph_output() for known in reach([value], _made_of_it_alone))


def _made_of_it_alone(value: ir.Value) -> Iterator[ir.Value]:
    return (out for use in value.uses() if _passes(use.node) for out in use.node.outputs)


def _passes(node: ir.Node) -> bool:
    """Return whether a node moves values, or computes from one tensor and no weights."""
    rule = OPERATORS.get(node.op_type)
    if node.domain or rule is None or rule.linear or rule.normalizes or rule.weights:
        return False
    computed = {value for value in node.inputs if value is not None and not is_constant(value)}
    return rule.moves or len(computed) == 1
