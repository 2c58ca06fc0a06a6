"""Nodes of a plan that fall back to float, to 16-bit activations or to 8-bit weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from msgspec.structs import replace

from bitwright.decide.left_float import leave_float
from bitwright.errors import PlanError, did_you_mean
from bitwright.numerics.types import UINT16
from bitwright.plan import Fallback, QuantPlan, TensorPlan
from bitwright.recipe import Override

_REASON = "fell back to float: its error reaches the outputs"


def fall_back(
    model: ir.Model, plan: QuantPlan, names: Iterable[str], to: Fallback = "float"
) -> QuantPlan:
    """Return the plan with these nodes float, or with more bits; `model` is what it was made for.

    "uint16" is for what they read and write: the range of each tensor stays as it was, and the
    plan's recipe names the tensors too, because it decides on the opset; `fingerprint` is then
    the caller's to renew. "int8" is for the weights of weight-only plans.
    """
    chosen = set(names)
    if to == "float":
        return leave_float(model, plan, dict.fromkeys(chosen, _REASON))
    for name in chosen:
        if name not in plan.nodes:
            raise PlanError(f"the plan has no node {name!r}.{did_you_mean(name, plan.nodes)}")
    if (to == "int8") != (plan.recipe.mode == "weight-only"):
        raise PlanError(_UNAVAILABLE[to])
    return _weights_to_int8(plan, chosen) if to == "int8" else _to_uint16(plan, chosen)


_UNAVAILABLE = {
    "int8": "'int8' is for the weights of weight-only plans; nodes of this plan fall back to float "
    "or uint16.",
    "uint16": "activations of a weight-only plan are float already; its nodes fall back to float "
    "or int8.",
}


def _weights_to_int8(plan: QuantPlan, chosen: set[str]) -> QuantPlan:
    weights = {
        key: replace(entry, bits=max(entry.bits, 8)) if chosen & set(entry.nodes) else entry
        for key, entry in plan.weights.items()
    }
    return replace(plan, weights=weights)


def _to_uint16(plan: QuantPlan, chosen: set[str]) -> QuantPlan:
    if not plan.recipe.output_format.pairs:
        raise PlanError(
            f"integer operators have no 16-bit activations (format {plan.recipe.format}); fall "
            "back to float, or plan with format qdq."
        )
    wanted = {
        plan.root(key)
        for name in chosen
        for key in (*plan.nodes[name].inputs, *plan.nodes[name].outputs)
        if key is not None and plan.tensors[key].role == "activation"
    }
    widened = {
        key: _widened(entry)
        for key, entry in plan.tensors.items()
        if entry.role == "activation" and entry.qtype.bits == 8 and plan.root(key) in wanted
    }
    overrides = dict(plan.recipe.overrides)
    for entry in widened.values():
        given = overrides.get(entry.tensor, Override())
        overrides[entry.tensor] = replace(given, qtype=UINT16)
    recipe = plan.recipe.replace(overrides=overrides)
    return replace(plan, tensors={**plan.tensors, **widened}, recipe=recipe)


def _widened(entry: TensorPlan) -> TensorPlan:
    """Return an 8-bit entry with 16 bits: the same ends, and 257 steps where there was one."""
    if entry.scale is None or entry.zero_point is None:
        return replace(entry, qtype=UINT16)
    scale = np.asarray(entry.scale, np.float64) / 257
    zeros = (np.asarray(entry.zero_point, np.int64) - int(entry.qtype.lowest)) * 257
    return replace(
        entry,
        qtype=UINT16,
        scale=scale.tolist(),
        zero_point=zeros.tolist(),
        method=f"{entry.method or 'given'}, widened to uint16",
    )
