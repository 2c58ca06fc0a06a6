"""Nodes of a plan left in float, and with them all pairs that no integer node needs.

A plan may be edited: the action of a node alone says that it is to be float. What follows from that
is settled here. Float nodes read their own weights and biases, and activations through a pair only
where an integer node writes them. What completes a float node is float with it: a Relu that its
quantizer was to do, a sum that was to be computed with its product. Scales stay as they are, so a
plan is placed anew without any data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from msgspec.structs import replace

from bitwright.decide.layout.entries import ABSORBED
from bitwright.decide.ops import LINEAR_OPS, rule_of
from bitwright.errors import PlanError, did_you_mean
from bitwright.graph import is_constant, iter_values, maker_of, reach
from bitwright.numerics.types import UINT16
from bitwright.plan import Fallback, NodePlan, QuantPlan, TensorPlan, WeightPlan
from bitwright.recipe import Override

_EDITED = "the plan says so"
_COMPLETES = "the node that it completes is float"
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def leave_float(
    model: ir.Model, plan: QuantPlan, reasons: Mapping[str, str] | None = None
) -> QuantPlan:
    """Return the plan with its float nodes, and those that `reasons` names, without integers.

    A plan that nobody edited comes back equal. `model` is the prepared float model.
    """
    edited = {name: node.reason for name, node in plan.nodes.items() if _is_edited(node, plan)}
    wanted = {n: _EDITED if why in (None, ABSORBED) else why or "" for n, why in edited.items()}
    wanted |= reasons or {}
    for name in wanted.keys() - plan.nodes.keys():
        raise PlanError(f"the plan has no node {name!r}.{did_you_mean(name, plan.nodes)}")
    nodes = {
        name: msgspec.structs.replace(node, action="float", reason=wanted[name])
        if name in wanted
        else node
        for name, node in plan.nodes.items()
    }
    if plan.recipe.mode != "static":
        weights = _still_read(plan.weights, nodes)
        return msgspec.structs.replace(plan, nodes=nodes, weights=weights)
    # Pairs around the float nodes of a model that was trained with pairs are part of it.
    changed = wanted if plan.trained else plan.nodes
    return _Placement(model, msgspec.structs.replace(plan, nodes=nodes), wanted, changed).settle()


def _is_edited(node: NodePlan, plan: QuantPlan) -> bool:
    """Whether somebody made a node float that was planned in integers, by its action alone."""
    if node.quantized:
        return False
    keys = [key for key in node.inputs if key is not None]
    stored = any(plan.tensors[key].role != "activation" for key in keys) or any(node.outputs)
    return node.reason in (None, ABSORBED) or (stored and not plan.trained)


def _still_read(
    weights: Mapping[str, WeightPlan], nodes: Mapping[str, NodePlan]
) -> dict[str, WeightPlan]:
    """Return the weights in blocks of which quantized nodes are left."""
    left = {
        name: tuple(reader for reader in weight.nodes if nodes[reader].quantized)
        for name, weight in weights.items()
    }
    return {
        name: msgspec.structs.replace(weight, nodes=left[name])
        for name, weight in weights.items()
        if left[name]
    }


class _Placement:
    """Settles what follows from the float nodes of a static plan."""

    def __init__(
        self, model: ir.Model, plan: QuantPlan, wanted: Collection[str], changed: Iterable[str]
    ) -> None:
        self._plan = plan
        self._wanted = wanted
        self._nodes, self._tensors = dict(plan.nodes), dict(plan.tensors)
        self._changed = set(changed)
        self._values = dict(iter_values(model))
        self._names = {value: name for name, value in self._values.items()}
        # In graph order: what completes a node comes behind it.
        self._graph = [node for node in model.graph.all_nodes() if node.name in plan.nodes]

    def settle(self) -> QuantPlan:
        """Return the plan with all that follows."""
        for node in self._graph:
            if self._completes_float(node):
                self._change(node, action="float", reason=_COMPLETES)
                self._changed.add(node.name or "")
        for node in self._graph:
            self._write_before_float_clip(node)
        written, read = self._tensors_of("outputs"), self._tensors_of("inputs")
        through = written | read if self._plan.recipe.place.isolated else written
        for node in self._graph:
            if self._is_changed(node):
                self._drop_integers(node, through)
        self._outputs = {
            name: None if key is not None and self._is_float_result(name, key, written) else key
            for name, key in self._plan.outputs.items()
        }
        if not self._plan.recipe.output_format.vendor_ops:
            for node in self._graph:
                if node.name in self._wanted and self._is_between_pairs(node):
                    self._change(node, unfused=True)
        gone = _referenced(self._plan.nodes, self._plan.outputs, self._tensors)
        gone -= _referenced(self._nodes, self._outputs, self._tensors)
        tensors = {key: entry for key, entry in self._tensors.items() if key not in gone}
        left = {entry.tensor for entry in tensors.values()}
        gains = {name: gain for name, gain in self._plan.weight_gains.items() if name in left}
        return msgspec.structs.replace(
            self._plan,
            nodes=self._nodes,
            tensors=tensors,
            outputs=self._outputs,
            weight_gains=gains,
        )

    def _change(self, node: ir.Node, **changes: Any) -> None:
        name = node.name or ""
        self._nodes[name] = msgspec.structs.replace(self._nodes[name], **changes)

    def _is_changed(self, node: ir.Node | None) -> bool:
        """Whether a node is float, and not only because the model was trained so."""
        name = "" if node is None else node.name or ""
        return name in self._changed and not self._nodes[name].quantized

    def _tensors_of(self, side: str) -> set[str]:
        """Return the tensors that integer nodes write, or read; those of training count."""
        return {
            self._tensors[key].tensor
            for name, node in self._nodes.items()
            if node.quantized or name not in self._changed
            for key in getattr(node, side)
            if key is not None
        }

    def _completes_float(self, node: ir.Node) -> bool:
        """Whether a node was to be computed with others, which are float."""
        planned = self._nodes[node.name or ""]
        if planned.action == "quantize":
            keyed = (key for key in planned.inputs if key is not None)
            if self._plan.trained or any(self._tensors[k].role == "activation" for k in keyed):
                return False
        makers = [
            self._maker(value, through_clips=planned.action == "quantize")
            for value, key in zip(node.inputs, planned.inputs, strict=False)
            if key is None and value is not None and value.dtype in _FLOATS
            if not is_constant(value) and value.producer() is not None
        ]
        return planned.quantized and bool(makers) and all(map(self._is_changed, makers))

    def _maker(self, value: ir.Value, *, through_clips: bool) -> ir.Node | None:
        """Return what computes a tensor, perhaps before the Relu or Clip that is done in float."""
        maker = value.producer()
        while maker is not None and self._is_changed(maker):
            if not through_clips or rule_of(maker.op_type).bounds is None:
                break
            maker = maker_of(maker.inputs[0])
        return maker

    def _write_before_float_clip(self, writer: ir.Node) -> None:
        """Let a node write its own result where a Relu that was absorbed is computed again.

        Its pair has the parameters of the quantizer behind the Relu, which clip as that does.
        """
        planned = self._nodes[writer.name or ""]
        if planned.action != "quantize":
            return
        for index, key in enumerate(planned.outputs):
            value, passed = writer.outputs[index], [writer]
            if key is None:
                continue
            while (name := self._names[value]) != self._tensors[key].tensor:
                reader = next((use.node for use in value.uses()), writer)
                if self._nodes[reader.name or ""].action != "absorb":
                    break
                passed.append(reader)
                value = reader.outputs[0]
            if name == self._tensors[key].tensor:
                continue
            qtype = self._tensors[key].qtype
            own = TensorPlan(tensor=name, role="activation", qtype=qtype, same_as=key)
            self._tensors.setdefault(name, own)
            for node in passed:
                outputs = self._nodes[node.name or ""].outputs
                self._change(node, outputs=tuple(name if k == key else k for k in outputs))
            self._change(reader, inputs=(name, *(None,) * (len(reader.inputs) - 1)))

    def _drop_integers(self, node: ir.Node, through: Collection[str]) -> None:
        """Let a float node write floats, and read through pairs only what integers are read of."""
        planned = self._nodes[node.name or ""]
        kept = (
            key
            if key is not None
            and (entry := self._tensors[key]).role == "activation"
            and entry.tensor in through
            else None
            for key in planned.inputs
        )
        self._change(node, inputs=tuple(kept), outputs=(None,) * len(planned.outputs))

    def _is_between_pairs(self, node: ir.Node) -> bool:
        """Whether ONNX Runtime would take a float product for an integer one and round its weights.

        It does between pairs (`verification.rounded`), also behind what only moves values.
        """
        if node.op_type not in LINEAR_OPS or not self._only_quantized(node.outputs[0]):
            return False
        maker: ir.Node | None = node
        while maker is not None and self._is_changed(maker):
            if self._nodes[maker.name or ""].inputs[0] is not None:
                return True
            if maker is not node and not rule_of(maker.op_type).keeps_scale_of(maker):
                return False
            maker = maker_of(maker.inputs[0])
        return False

    def _only_quantized(self, value: ir.Value) -> bool:
        """Whether all that reads a tensor reads integers, also behind what moves or clips it."""
        name = self._names[value]
        if value.is_graph_output() and self._outputs.get(name) is None:
            return False
        for use in value.uses():
            planned, rule = self._nodes.get(use.node.name or ""), rule_of(use.node.op_type)
            if planned is None:
                return False
            if planned.quantized and (planned.action == "absorb" or planned.inputs[use.idx]):
                continue
            passes = rule.bounds is not None or rule.keeps_scale_of(use.node)
            if not passes or not self._only_quantized(use.node.outputs[0]):
                return False
        return True

    def _is_float_result(self, name: str, key: str, written: Collection[str]) -> bool:
        """Whether what leaves the model is computed in float."""
        maker = self._values[name].producer()
        return self._tensors[key].tensor not in written and self._is_changed(maker)


def _referenced(
    nodes: Mapping[str, NodePlan],
    outputs: Mapping[str, str | None],
    tensors: Mapping[str, TensorPlan],
) -> set[str]:
    """Return the entries that are used, and those that these have their parameters from."""
    used = {key for node in nodes.values() for key in (*node.inputs, *node.outputs)}
    keys = (key for key in used | set(outputs.values()) if key is not None)
    return set(reach(keys, lambda key: tensors[key].depends_on))


# Fallback to float, to 16-bit activations or to 8-bit weights ----------------------------------

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
