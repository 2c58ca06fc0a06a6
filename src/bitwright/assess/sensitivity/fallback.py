"""Nodes of a plan that fall back to float, to 16-bit activations or to 8-bit weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from bitwright.errors import PlanError, did_you_mean
from bitwright.numerics.types import UINT16
from bitwright.plan import NodePlan, QuantPlan, TensorPlan, WeightPlan
from bitwright.recipe import Override

__all__ = ["Fallback", "fall_back"]

Fallback = Literal["float", "uint16", "int8"]

_REASON = "fell back to float: its error reaches the outputs"


def fall_back(plan: QuantPlan, names: Iterable[str], to: Fallback = "float") -> QuantPlan:
    """Return the plan with these nodes float, or with more bits.

    "uint16" is for what they read and write: the range of each tensor stays as it was, and the
    plan's recipe names the tensors too, because it decides on the opset; `fingerprint` is then
    the caller's to renew. "int8" is for the weights of weight-only plans.

    >>> from bitwright.recipe import Recipe
    >>> node = NodePlan(op="Gemm", action="quantize", inputs=("x", "w"), outputs=("y",))
    >>> plan = QuantPlan(recipe=Recipe(), fingerprint="", tensors={}, nodes={"fc": node})
    >>> fall_back(plan, ["fc"]).nodes["fc"].inputs
    (None, None)
    """
    chosen = list(names)
    for name in chosen:
        if name not in plan.nodes:
            raise PlanError(f"the plan has no node {name!r}.{did_you_mean(name, plan.nodes)}")
    if plan.recipe.mode == "weight-only":
        return _widen_weights(plan, set(chosen), to)
    if to == "int8":
        raise PlanError(
            "'int8' is for the weights of weight-only plans; nodes of this plan fall back to float "
            "or uint16."
        )
    return _to_float(plan, chosen) if to == "float" else _to_uint16(plan, chosen)


# Weights -----------------------------------------------------------------------------------


def _widen_weights(plan: QuantPlan, chosen: set[str], to: Fallback) -> QuantPlan:
    if to == "uint16":
        raise PlanError(
            "activations of a weight-only plan are float already; its nodes fall back to float "
            "or int8."
        )
    weights: dict[str, WeightPlan] = {}
    for key, entry in plan.weights.items():
        if to == "int8":
            wide = bool(chosen & set(entry.nodes)) and entry.bits < 8
            weights[key] = msgspec.structs.replace(entry, bits=8) if wide else entry
        elif left := tuple(name for name in entry.nodes if name not in chosen):
            weights[key] = msgspec.structs.replace(entry, nodes=left)
    nodes = dict(plan.nodes)
    for name in chosen if to == "float" else ():
        nodes[name] = msgspec.structs.replace(nodes[name], action="float", reason=_REASON)
    return msgspec.structs.replace(plan, weights=weights, nodes=nodes)


# To float ---------------------------------------------------------------------------------


def _to_float(plan: QuantPlan, names: list[str]) -> QuantPlan:
    chosen = set(names)
    read, written = set[str](), set[str]()
    for name in names:
        read |= {plan.tensors[key].tensor for key in plan.nodes[name].inputs if key in plan.tensors}
        written |= {key for key in plan.nodes[name].outputs if key is not None}
    # A Relu that a quantizer did has to be done again: behind a node that falls back, and before
    # one, which reads the tensor itself.
    undone = {
        name: node.outputs[0]
        for name, node in plan.nodes.items()
        if node.action == "absorb"
        and (key := node.outputs[0]) is not None
        and (key in written or plan.tensors[key].tensor in read)
    }
    nodes: dict[str, NodePlan] = {}
    for name, node in plan.nodes.items():
        if name in chosen or (name in undone and undone[name] in written):
            node = msgspec.structs.replace(
                node,
                action="float",
                reason=_REASON,
                inputs=(None,) * len(node.inputs),
                outputs=(None,) * len(node.outputs),
            )
        elif name in undone:
            node = msgspec.structs.replace(node, action="quantize", reason=None)
        elif node.action == "quantize":
            kept = tuple(None if key in undone.values() else key for key in node.outputs)
            node = msgspec.structs.replace(node, outputs=kept)
        else:
            # Float nodes read dequantized values so that their producers stay fused, which those
            # that fall back are not.
            kept = tuple(None if key in written else key for key in node.inputs)
            node = msgspec.structs.replace(node, inputs=kept)
        nodes[name] = node
    outputs = {name: None if key in written else key for name, key in plan.outputs.items()}
    used = {key for node in nodes.values() for key in (*node.inputs, *node.outputs)}
    used |= set(outputs.values())
    tensors = _with_what_they_need(plan.tensors, used)
    return msgspec.structs.replace(plan, nodes=nodes, outputs=outputs, tensors=tensors)


def _with_what_they_need(
    tensors: dict[str, TensorPlan], used: set[str | None]
) -> dict[str, TensorPlan]:
    """Return the entries that are used, with those whose scales they take."""
    waiting = [key for key in used if key is not None]
    kept: set[str] = set()
    while waiting:
        key = waiting.pop()
        if key in kept or key not in tensors:
            continue
        kept.add(key)
        entry = tensors[key]
        waiting += [
            k for k in (entry.same_as, entry.source, *(entry.bias_of or ())) if k is not None
        ]
    return {key: entry for key, entry in tensors.items() if key in kept}


# To 16 bits -------------------------------------------------------------------------------


def _to_uint16(plan: QuantPlan, names: list[str]) -> QuantPlan:
    if plan.recipe.format not in ("qdq", "extended"):
        raise PlanError(
            f"integer operators have no 16-bit activations (format {plan.recipe.format}); fall "
            "back to float, or plan with format qdq."
        )
    wanted = {
        plan.root(key)
        for name in names
        for key in (*plan.nodes[name].inputs, *plan.nodes[name].outputs)
        if key is not None and plan.tensors[key].role == "activation"
    }
    tensors = dict(plan.tensors)
    changed: list[str] = []
    for key, entry in plan.tensors.items():
        if entry.role != "activation" or plan.root(key) not in wanted or entry.qtype.bits != 8:
            continue
        tensors[key] = _widened(entry)
        changed.append(entry.tensor)
    overrides = dict(plan.recipe.overrides)
    for tensor in changed:
        given = overrides.get(tensor, Override())
        overrides[tensor] = msgspec.structs.replace(given, qtype=UINT16)
    recipe = plan.recipe.replace(overrides=overrides)
    return msgspec.structs.replace(plan, tensors=tensors, recipe=recipe)


def _widened(entry: TensorPlan) -> TensorPlan:
    """Return an 8-bit entry with 16 bits: the same ends, and 257 steps where there was one."""
    if entry.scale is None or entry.zero_point is None:
        return msgspec.structs.replace(entry, qtype=UINT16)
    scale = np.asarray(entry.scale, np.float64) / 257
    zeros = (np.asarray(entry.zero_point, np.int64) - int(entry.qtype.lowest)) * 257
    return msgspec.structs.replace(
        entry,
        qtype=UINT16,
        scale=scale.tolist(),
        zero_point=zeros.tolist(),
        method=f"{entry.method or 'given'}, widened to uint16",
    )
