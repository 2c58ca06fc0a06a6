"""What becomes of results: which integers nothing multiplies, and which values leave the model.

To quantize what nothing multiplies would only add rounding. Arithmetic on integers pays where it
ends in a product or another node that is quantized for its own sake. The sums along the residual
path of a transformer do not: normalizations read them, in float, and every sum rounds again what
all layers before it have added up. A product whose result only float nodes read need not round it
either: its integer kernel writes floats as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import OPERATORS, rule_of
from bitwright.graph import is_constant, reach
from bitwright.plan import NodePlan


def find_unread_nodes(layout: Layout, *, wanted: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the quantized nodes that compute new values, and whose results end in float nodes.

    Nodes that are `wanted` count as read, and so does a tensor with an override. What only moves
    a product's result, out of the model or to float nodes, moves floats as well.
    """
    quantized = {name: plan for name, plan in layout.nodes.items() if plan.action == "quantize"}
    asked = wanted | {
        name
        for name, plan in quantized.items()
        if any(key and layout.entries[key].override is not None for key in plan.outputs)
    }
    useful = _find_useful(layout, quantized, asked)
    unread = {  # those that round anew, and do not just move values
        name
        for name in quantized.keys() - useful
        if rule_of(quantized[name].op).needs_all_inputs_quantized
    }
    integers = {
        tensor
        for name in useful & quantized.keys()
        for tensor in _tensors(layout, quantized[name].inputs)
    }
    products = {
        name
        for name in quantized.keys() - asked
        if rule_of(quantized[name].op).writes_float
        and (results := _tensors(layout, quantized[name].outputs))
        and integers.isdisjoint(results)
    }
    return frozenset(unread | products)


def _find_useful(
    layout: Layout, quantized: Mapping[str, NodePlan], asked: frozenset[str]
) -> set[str]:
    """Return the nodes that are asked for or quantized for their own sake, and what feeds them."""
    writers = {
        tensor: name
        for name, plan in quantized.items()
        for tensor in _tensors(layout, plan.outputs)
    }
    # All others are quantized only because their inputs are.
    useful = asked | {
        name
        for name, rule in ((name, rule_of(plan.op)) for name, plan in quantized.items())
        if not rule.needs_quantized_input and not rule.needs_all_inputs_quantized
    }

    def feeding(name: str) -> list[str]:
        read = _tensors(layout, quantized[name].inputs) if name in quantized else set()
        return [writers[tensor] for tensor in read if tensor in writers]

    return {*reach(useful, feeding)}


def _tensors(layout: Layout, keys: tuple[str | None, ...]) -> set[str]:
    """Return the names of tensors; a converted one has two entries, and one name."""
    return {layout.entries[key].name for key in keys if key}


def mark_results(layout: Layout, nodes: Iterable[ir.Node]) -> None:
    """Mark the entries that nodes write as integers, and whose values leave the model.

    What a range method clips inside a model costs a little in what is computed from it. Of the
    scores that leave the model the largest are the answer, and all that are clipped become the
    same: so nothing of their range is clipped.
    """
    for node in nodes:
        plan = layout.nodes[node.name or ""]
        for value, key in zip(node.outputs, plan.outputs, strict=True):
            if key is not None and leaves_model(value):
                layout.entries[layout.root(key)].leaves_model = True


def leaves_model(value: ir.Value) -> bool:
    """Return whether an output of the model is a function of this tensor alone, without weights."""
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
