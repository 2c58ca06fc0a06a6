"""One scale for all computed inputs of some operators, as hardware that adds integers wants it.

Ranges are chosen tensor by tensor before; here those of inputs that meet are made one that covers
all of them. A tensor that several operators read joins their inputs, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec
import numpy as np

from bitwright.decide.layout.entries import Layout
from bitwright.numerics.scales import affine_parameters
from bitwright.plan import TensorPlan
from bitwright.recipe import Recipe


def share_scales(
    layout: Layout, tensors: Mapping[str, TensorPlan], recipe: Recipe
) -> dict[str, TensorPlan]:
    """Return the inputs of `place.same_scale_ops` with the widest of their ranges.

    Inputs of several types or with scales of channels stay as they are; so do constants.
    """
    changed = {}
    for keys in _groups(layout, tensors, recipe) if recipe.place.same_scale_ops else ():
        plans = [tensors[key] for key in keys]
        spans = np.array([_span(plan) for plan in plans])
        scale, zero = affine_parameters(
            spans[:, 0].min(),
            spans[:, 1].max(),
            plans[0].qtype,
            symmetric=recipe.activation_symmetric,
            min_real_range=recipe.min_real_range,
            kind=recipe.scales,
        )
        for key, plan in zip(keys, plans, strict=True):
            changed[key] = msgspec.structs.replace(
                plan,
                scale=float(scale),
                zero_point=int(zero),
                method=f"{plan.method}, as the other inputs of its reader",
            )
    return changed


def _groups(layout: Layout, tensors: Mapping[str, TensorPlan], recipe: Recipe) -> list[list[str]]:
    """Return the entries that have to have one scale, those of several each."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for node in layout.nodes.values():
        if node.op not in recipe.place.same_scale_ops or node.action != "quantize":
            continue
        read = [layout.root(key) for key in node.inputs if key is not None]
        roots = [key for key in dict.fromkeys(read) if _may_share(tensors[key])]
        for other in roots[1:]:
            if tensors[other].qtype == tensors[roots[0]].qtype:
                leader[find(other)] = find(roots[0])
    groups = defaultdict(list)
    for key in leader:
        groups[find(key)].append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _may_share(plan: TensorPlan) -> bool:
    single = plan.scale is not None and np.ndim(plan.scale) == 0
    return plan.role == "activation" and plan.qtype.is_integer and single


def _span(plan: TensorPlan) -> tuple[float, float]:
    assert plan.scale is not None and isinstance(plan.zero_point, int)
    scale = float(np.asarray(plan.scale))
    low, high = ((end - plan.zero_point) * scale for end in (plan.qtype.lowest, plan.qtype.highest))
    return low, high
