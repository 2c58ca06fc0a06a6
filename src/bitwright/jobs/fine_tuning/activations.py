"""Which activation scales learn, in which segment, and how small they may become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.graph import constant_of, iter_values
from bitwright.learning.segments import Segment
from bitwright.numerics.scales import smallest_bias_scale
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import find_override


def find_learning_scales(
    model: ir.Model, plan: QuantPlan, segments: Sequence[Segment]
) -> dict[str, int]:
    """Return the activation entries whose scales can learn -> the segment that they learn in.

    That is the segment of the first node that reads a tensor through the scale. Where that node is
    in none, what reaches a segment is on the steps of the old scale already: such a scale stays, as
    do those that the recipe gives itself.
    """
    places = {node.name: i for i, segment in enumerate(segments) for node in segment.nodes}
    inside = {node.name for node in model.graph}
    order = [
        *(node.name or "" for node in model.graph),
        *(n for n in plan.nodes if n not in inside),
    ]
    found: dict[str, int] = {}
    seen: set[str] = set()
    for name in order:
        for root in _read_through(name, plan):
            if root not in seen and name in places:
                found[root] = places[name]
            seen.add(root)
    ranged = {  # those whose operator has a range in the recipe
        name
        for name, value in iter_values(model)
        if (node := value.producer()) is not None and node.op_type in plan.recipe.output_ranges
    }
    fixed = {
        plan.root(key)
        for key, entry in plan.tensors.items()
        if entry.tensor in ranged or _is_fixed(plan, entry)
    }
    return {root: index for root, index in found.items() if root not in fixed}


def smallest_factors(model: ir.Model, plan: QuantPlan, roots: Sequence[str]) -> dict[str, float]:
    """Return how small the factor of each scale may be, so that int32 biases do not overflow.

    A bias is stored at input scale times weight scale; float ones are by ONNX Runtime.
    """
    smallest = dict.fromkeys(roots, 0.0)
    for node in model.graph:
        planned = plan.nodes.get(node.name or "")
        bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if planned is None or not planned.quantized or bias is None:
            continue
        keys = planned.inputs[:2]
        if len(keys) < 2 or None in keys or (root := plan.root(keys[0] or "")) not in smallest:
            continue
        source, weight = (plan.parameters(key or "").scale for key in keys)
        per_channel = np.size(weight) == bias.size
        needed = smallest_bias_scale(bias, per_channel=per_channel).reshape(-1)
        scale = np.asarray(source * (weight if per_channel else np.min(weight))).reshape(-1)
        smallest[root] = min(max(smallest[root], float(np.max(needed / scale))), 1.0)
    return smallest


def rescale(entry: TensorPlan, scale: float) -> TensorPlan:
    """Return an activation's entry with a learned scale, and the range that follows from it."""
    zero_point = entry.zero_point
    assert isinstance(zero_point, int)
    ends = (entry.qtype.lowest - zero_point) * scale, (entry.qtype.highest - zero_point) * scale
    return msgspec.structs.replace(entry, scale=scale, range=ends, method="learned step size")


def _read_through(name: str, plan: QuantPlan) -> Iterator[str]:
    """Yield the entries of activations that a node's inputs have their scales from."""
    planned = plan.nodes.get(name)
    if planned is None or planned.action == "absorb":
        return
    pending = [key for key in planned.inputs if key is not None]
    while pending:
        key = pending.pop()
        entry = plan.tensors[key]
        if entry.role == "activation":
            yield plan.root(key)
        if entry.source is not None:
            pending.append(entry.source)


def _is_fixed(plan: QuantPlan, entry: TensorPlan) -> bool:
    """Whether an entry keeps its scale: no single float of an integer type, or a given one."""
    if entry.role != "activation" or not entry.qtype.is_integer:
        return True
    if entry.same_as is None and not isinstance(entry.scale, float):
        return True
    given = find_override(plan.recipe.overrides, entry.tensor)
    return given is not None and (given.scale, given.rmin, given.rmax) != (None, None, None)
