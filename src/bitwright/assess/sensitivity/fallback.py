"""Nodes of a plan that fall back to float, to 16-bit activations or to 8-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace

from bitwright.errors import PlanError, did_you_mean
from bitwright.numerics.types import UINT16
from bitwright.plan import NodePlan, QuantPlan, TensorPlan
from bitwright.recipe import Override

__all__ = ["FALLBACK_NAMES", "Fallback", "fall_back"]

Fallback = Literal["float", "uint16", "int8"]

FALLBACK_NAMES: dict[Fallback, str] = {"float": "float", "uint16": "16 bits", "int8": "8 bits"}

_REASON = "fell back to float: its error reaches the outputs"


def fall_back(plan: QuantPlan, names: Iterable[str], to: Fallback = "float") -> QuantPlan:
    """Return the plan with these nodes float, or with more bits.

    "uint16" is for what they read and write: the range of each tensor stays as it was, and the
    plan's recipe names the tensors too, because it decides on the opset; `fingerprint` is then
    the caller's to renew. "int8" is for the weights of weight-only plans.
    """
    chosen = set(names)
    for name in chosen:
        if name not in plan.nodes:
            raise PlanError(f"the plan has no node {name!r}.{did_you_mean(name, plan.nodes)}")
    change = _CHANGES.get((plan.recipe.mode == "weight-only", to))
    if change is None:
        raise PlanError(_UNAVAILABLE[to])
    return change(plan, chosen)


_UNAVAILABLE: dict[Fallback, str] = {
    "int8": "'int8' is for the weights of weight-only plans; nodes of this plan fall back to float "
    "or uint16.",
    "uint16": "activations of a weight-only plan are float already; its nodes fall back to float "
    "or int8.",
}


# Weights -----------------------------------------------------------------------------------


def _weights_to_int8(plan: QuantPlan, chosen: set[str]) -> QuantPlan:
    weights = {
        key: replace(entry, bits=max(entry.bits, 8)) if chosen & set(entry.nodes) else entry
        for key, entry in plan.weights.items()
    }
    return replace(plan, weights=weights)


def _weights_to_float(plan: QuantPlan, chosen: set[str]) -> QuantPlan:
    weights = {
        key: replace(entry, nodes=left)
        for key, entry in plan.weights.items()
        if (left := tuple(name for name in entry.nodes if name not in chosen))
    }
    floats = {
        name: replace(plan.nodes[name], action="float", reason=_REASON)
        for name in plan.nodes
        if name in chosen
    }
    return replace(plan, weights=weights, nodes={**plan.nodes, **floats})


# To float ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FloatNodes:
    """Nodes that become float, and what that changes for their neighbours."""

    names: set[str]
    entries: set[str]
    """What they wrote quantized."""
    clips: dict[str, str]
    """Relu or Clip that the quantizer of this entry did, and that is computed again: behind a node
    that becomes float, and before one, which reads the tensor itself."""

    @classmethod
    def find(cls, plan: QuantPlan, chosen: set[str]) -> _FloatNodes:
        nodes = [plan.nodes[name] for name in chosen]
        written = {key for node in nodes for key in node.outputs if key is not None}
        read = {plan.tensors[k].tensor for n in nodes for k in n.inputs if k and k in plan.tensors}
        clips = {
            name: key
            for name, node in plan.nodes.items()
            if node.action == "absorb"
            and (key := node.outputs[0]) is not None
            and (key in written or plan.tensors[key].tensor in read)
        }
        behind = {name for name, key in clips.items() if key in written}
        return cls(chosen | behind, written, clips)

    def change(self, name: str, node: NodePlan) -> NodePlan:
        """Return what a node of the plan becomes."""
        if name in self.names:
            inputs, outputs = (None,) * len(node.inputs), (None,) * len(node.outputs)
            return replace(node, action="float", reason=_REASON, inputs=inputs, outputs=outputs)
        if name in self.clips:
            return replace(node, action="quantize", reason=None)
        if node.action == "quantize":
            return replace(node, outputs=_without(node.outputs, set(self.clips.values())))
        # Float nodes read dequantized values so that their producers stay fused, which those that
        # become float are not.
        return replace(node, inputs=_without(node.inputs, self.entries))


def _to_float(plan: QuantPlan, chosen: set[str]) -> QuantPlan:
    floats = _FloatNodes.find(plan, chosen)
    nodes = {name: floats.change(name, node) for name, node in plan.nodes.items()}
    outputs = {n: None if key in floats.entries else key for n, key in plan.outputs.items()}
    used = {key for node in nodes.values() for key in (*node.inputs, *node.outputs)}
    tensors = _needed(plan.tensors, used | set(outputs.values()))
    return replace(plan, nodes=nodes, outputs=outputs, tensors=tensors)


def _without(keys: tuple[str | None, ...], dropped: set[str]) -> tuple[str | None, ...]:
    return tuple(None if key in dropped else key for key in keys)


def _needed(tensors: Mapping[str, TensorPlan], used: set[str | None]) -> dict[str, TensorPlan]:
    """Return the entries that are used, with those whose scales they take."""
    waiting, kept = list(used), set[str]()
    while waiting:
        key = waiting.pop()
        if key is not None and key in tensors and key not in kept:
            kept.add(key)
            waiting += tensors[key].depends_on
    return {key: entry for key, entry in tensors.items() if key in kept}


# To 16 bits -------------------------------------------------------------------------------


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


# (Whether the plan is weight-only, what its nodes fall back to) -> how.
_CHANGES: dict[tuple[bool, Fallback], Callable[[QuantPlan, set[str]], QuantPlan]] = {
    (False, "float"): _to_float,
    (False, "uint16"): _to_uint16,
    (True, "float"): _weights_to_float,
    (True, "int8"): _weights_to_int8,
}
