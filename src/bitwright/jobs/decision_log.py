"""The decisions of a plan, in the log: what became of each node, and why."""

from __future__ import annotations

import logging

from bitwright.plan import QuantPlan
from bitwright.support.wording import counted

_LOGGER = logging.getLogger(__name__)


def log_decisions(plan: QuantPlan) -> None:
    """Log how many nodes are quantized, what there is to note, and each node for who wants it."""
    chosen = sum(node.quantized for node in plan.nodes.values())
    taken, _ = plan.recipe.done_and_left
    nodes = counted(len(plan.nodes), "node")
    _LOGGER.info("%d of %s %s by %s", chosen, nodes, taken, plan.recipe.name)
    for note in plan.notes:
        _LOGGER.info("note: %s", note)
    if _LOGGER.isEnabledFor(logging.DEBUG):
        for name, node in plan.nodes.items():
            reason = f", {node.why}" if node.reason else ""
            _LOGGER.debug("node %r (%s): %s%s", name, node.op, node.action, reason)
