"""Nodes whose integers nothing multiplies: quantized, they would only add rounding.

Arithmetic on integers pays where it ends in a product or another node that is quantized for its
own sake. The sums along the residual path of a transformer do not: normalizations read them, in
float, and every sum rounds again what all layers before it have added up.
"""

from __future__ import annotations

from bitwright.decide.layout.entries import Layout
from bitwright.decide.ops import OpRule, rule_of

__all__ = ["find_unread_nodes"]


def find_unread_nodes(layout: Layout, *, wanted: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the quantized nodes that compute new values, and whose results end in float nodes.

    Nodes that are `wanted` count as read, and so does a tensor with an override.

    >>> find_unread_nodes(Layout())
    frozenset()
    """
    quantized = {name: plan for name, plan in layout.nodes.items() if plan.action == "quantize"}
    writers = {key: name for name, plan in quantized.items() for key in plan.outputs if key}
    reached = {
        name
        for name, plan in quantized.items()
        if name in wanted
        or not _follows(rule_of(plan.op))
        or any(key and layout.entries[key].override is not None for key in plan.outputs)
    }
    waiting = list(reached)
    while waiting:
        for key in quantized[waiting.pop()].inputs:
            # A converted tensor has a second entry, which carries the name of the first.
            writer = writers.get(layout.entries[key].name) if key else None
            if writer is not None and writer not in reached:
                reached.add(writer)
                waiting.append(writer)
    return frozenset(
        name
        for name, plan in quantized.items()
        if name not in reached and rule_of(plan.op).needs_all_inputs_quantized
    )


def _follows(rule: OpRule) -> bool:
    """Whether an operator is quantized only because its inputs are."""
    return rule.needs_quantized_input or rule.needs_all_inputs_quantized
