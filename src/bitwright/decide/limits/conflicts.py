"""Concats whose limits conflict fall back to float, where joining would clip their inputs.

The NPU joins tensors at one position. A box of 300 pixels needs position -1 and a hard sigmoid
takes no position below 7, so a detector that joins the two has none for both: at 7, boxes would
end at 1. Computed in float, such a Concat keeps what it joins, and no limit is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
import onnx_ir as ir

from bitwright.plan import QuantPlan
from bitwright.targets.npu_limits import NpuOperation, Ref

__all__ = ["fall_back_to_float", "find_conflicting_concat"]

_REASON = "the NPU's limits have no scale for all that it joins"


def find_conflicting_concat(
    operations: Iterable[tuple[ir.Node, NpuOperation]],
    found: Mapping[Ref, int],
    without: Mapping[Ref, int],
) -> str | None:
    """Return the Concat whose inputs' positions lie furthest apart, of those that clip an input.

    `found` has the positions that hold all limits, `without` those of all limits but the Concats'.
    """
    conflicts = {
        node.name or "": max(wanted) - min(wanted)
        for node, operation in operations
        if operation.op == "Concat" and operation.output is not None and operation.known
        if (wanted := [without[ref] for ref in operation.known])
        if found[operation.output] > min(wanted)
    }
    return max(conflicts, key=lambda name: conflicts[name], default=None)


def fall_back_to_float(plan: QuantPlan, name: str) -> QuantPlan:
    """Return the plan with a Concat computed in float, on what its producers write in integers."""
    written = {key for node in plan.nodes.values() for key in node.outputs}
    node = plan.nodes[name]
    float_node = msgspec.structs.replace(
        node,
        action="float",
        reason=_REASON,
        # Integers that a float node would only turn back gain nothing.
        inputs=tuple(key if key in written else None for key in node.inputs),
        outputs=(None,) * len(node.outputs),
    )
    changed = msgspec.structs.replace(plan, nodes={**plan.nodes, name: float_node})
    return _without_unused(changed, {key for key in (*node.inputs, *node.outputs) if key})


def _without_unused(plan: QuantPlan, keys: set[str]) -> QuantPlan:
    """Return the plan without those of these entries that no node has any more."""
    uses = Counter(key for node in plan.nodes.values() for key in (*node.inputs, *node.outputs))
    uses.update(key for entry in plan.tensors.values() for key in entry.depends_on)
    gone = {key for key in keys if not uses[key]}
    return msgspec.structs.replace(
        plan,
        tensors={key: entry for key, entry in plan.tensors.items() if key not in gone},
        outputs={name: None if key in gone else key for name, key in plan.outputs.items()},
    )
