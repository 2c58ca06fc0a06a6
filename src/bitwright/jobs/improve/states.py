"""Plans with units in other states: float, 16-bit activations, or 4-bit weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.decide.left_float import fall_back
from bitwright.graph import iter_values
from bitwright.jobs.opening import Prepared
from bitwright.numerics import INT4, fake_quantize
from bitwright.plan import Fallback, QuantPlan, TensorPlan
from bitwright.recipe import Override

Array = npt.NDArray[Any]

_SHRINKS = np.linspace(1.0, 0.5, 11)
"""Shares of the range of an 8-bit weight that are tried as the range of a 4-bit one."""


_FALLBACKS: Mapping[str, Fallback] = {"a16": "uint16", "w8": "int8", "float": "float"}
"""What nodes fall back to, in this order: what is float then needs no entry of its own."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime computes as one, named after its most important node."""

    node: str
    op: str
    nodes: tuple[str, ...]
    """All nodes of the plan that are in it."""


def with_states(
    prepared: Prepared, plan: QuantPlan, units: Sequence[Unit], states: Mapping[str, str]
) -> QuantPlan:
    """Return the plan with each unit in its state; those that are not named stay as planned."""
    for state in ("w4", *_FALLBACKS):
        nodes = [node for unit in units if states.get(unit.node) == state for node in unit.nodes]
        if nodes and state == "w4":
            plan = narrow_weights(prepared, plan, nodes)
        elif nodes:
            plan = fall_back(prepared.model, plan, nodes, _FALLBACKS[state])
    return plan


def narrow_weights(prepared: Prepared, plan: QuantPlan, nodes: Iterable[str]) -> QuantPlan:
    """Return the plan with weights of 4 bits where they had 8, over the range of least error.

    A weight that another node reads, too, stays.
    """
    chosen = set(nodes)
    readers: dict[str, set[str]] = {}
    for name, node in plan.nodes.items():
        for key in node.inputs:
            if key is not None:
                readers.setdefault(key, set()).add(name)
    values = dict(iter_values(prepared.model))
    narrowed: dict[str, TensorPlan] = {}
    for key, users in readers.items():
        entry = plan.tensors[key]
        value = values.get(entry.tensor)
        if (
            users <= chosen
            and _can_narrow(entry)
            and value is not None
            and value.const_value is not None
        ):
            narrowed[key] = _narrow(entry, value.const_value.numpy())
    overrides = dict(plan.recipe.overrides)
    for entry in narrowed.values():
        given = overrides.get(entry.tensor, Override())
        overrides[entry.tensor] = msgspec.structs.replace(given, qtype=INT4)
    recipe = plan.recipe.replace(overrides=overrides)
    return msgspec.structs.replace(plan, tensors={**plan.tensors, **narrowed}, recipe=recipe)


def _can_narrow(entry: TensorPlan) -> bool:
    """Whether a weight has 8 bits around zero, and scales of its own."""
    return (
        entry.role == "weight"
        and entry.qtype.is_integer
        and entry.qtype.bits == 8
        and entry.scale is not None
        and not entry.block_size
        and not np.any(entry.zero_point)
    )


def _narrow(entry: TensorPlan, weight: Array) -> TensorPlan:
    wide = np.asarray(entry.scale, np.float64) * entry.qtype.highest / INT4.highest
    axes = tuple(axis for axis in range(weight.ndim) if wide.ndim and axis != entry.axis)
    best, least = wide, np.full(wide.shape, np.inf)
    for shrink in _SHRINKS:
        scale = wide * shrink
        shown = fake_quantize(weight, scale, np.zeros(scale.shape, np.int64), INT4, axis=entry.axis)
        change = np.square(weight.astype(np.float64) - shown)
        lost = change.sum(axis=axes) if wide.ndim else change.sum()
        best = np.where(lost < least, scale, best)
        least = np.minimum(lost, least)
    return msgspec.structs.replace(
        entry,
        qtype=INT4,
        scale=best.tolist(),
        zero_point=np.zeros(best.shape, np.int64).tolist(),
        method="least squared error",
        rounding="nearest",
    )
