"""The plan of a model: scales for every tensor of a layout, then limits and fused activations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.entries import ABSORBED, Entry, Layout, plan_as_float, plan_node
from bitwright.decide.layout.fallback import leave_masks_float, leave_unreached_float
from bitwright.decide.limits import apply_limits
from bitwright.decide.scales.biases import fit_narrow_biases, prevent_bias_overflow
from bitwright.decide.scales.parameters import activation_plan, linked_plan, weight_plan
from bitwright.decide.scales.sharing import share_scales
from bitwright.decide.scales.unsigned import shift_to_unsigned
from bitwright.decide.validation import may_absorb
from bitwright.errors import DataError, NothingQuantizedError
from bitwright.plan import NodePlan, QuantPlan, TensorPlan
from bitwright.recipe import Recipe
from bitwright.support.collector import without_collection

if TYPE_CHECKING:
    from bitwright.observe import TensorSketch


@without_collection()
def decide(
    model: ir.Model,
    layout: Layout,
    sketches: Mapping[str, TensorSketch],
    recipe: Recipe,
    *,
    fingerprint: str,
    tool: str,
) -> QuantPlan:
    """Return the plan: type and scale of every entry of the layout, and what each node does."""
    layout = leave_masks_float(model, layout, sketches)
    layout = leave_unreached_float(model, layout, sketches)
    _refuse_invalid_values(layout, sketches)
    tensors = {
        key: _choose_parameters(entry, sketches, recipe) for key, entry in layout.entries.items()
    }
    plan = QuantPlan(
        tool=tool,
        fingerprint=fingerprint,
        recipe=recipe,
        tensors=tensors | share_scales(layout, tensors, recipe),
        nodes=layout.nodes,
        outputs=layout.outputs,
        notes=layout.notes,
    )
    if recipe.emulate.adjust_for_bias:
        plan = prevent_bias_overflow(model, layout, plan)
    plan = fit_narrow_biases(layout, apply_limits(model, plan))
    plan = _absorb_activations(model, layout, plan)
    # Layers that do not learn beside others that do are rounded without data.
    if recipe.rounding == "squant" or (recipe.rounding == "gptq" and recipe.fine_tune is not None):
        plan = _round_convolutions_by_squant(plan)
    if recipe.place.unsigned_activations:
        plan = shift_to_unsigned(plan, _UNSIGNED) or plan
    if not any(node.quantized for node in plan.nodes.values()):
        raise NothingQuantizedError(_nothing_quantized(model, plan))
    return plan


def with_ranges(
    plan: QuantPlan, layout: Layout, sketches: Mapping[str, TensorSketch], recipe: Recipe
) -> QuantPlan:
    """Return a plan of a layout with the ranges of activations by other sketches or methods.

    All else stays as it was decided.
    """
    chosen = dict(plan.tensors)
    for key, entry in layout.entries.items():
        own = entry.role == "activation" and entry.same_as is None and entry.bias_of is None
        if own and entry.qtype.is_integer:
            chosen[key] = _choose_parameters(entry, sketches, recipe)
    chosen |= share_scales(layout, chosen, recipe) if recipe.place.same_scale_ops else {}
    changed = {}
    for key, tensor in plan.tensors.items():
        if tensor.role != "activation" or tensor.scale is None or key not in layout.entries:
            continue
        found = chosen[layout.root(key)]
        # The type may have been made unsigned for the runtime.
        zero = np.asarray(found.zero_point) + round(tensor.qtype.lowest - found.qtype.lowest)
        changed[key] = msgspec.structs.replace(tensor, scale=found.scale, zero_point=zero.tolist())
    return plan.with_tensors(changed)


def _choose_parameters(
    entry: Entry, sketches: Mapping[str, TensorSketch], recipe: Recipe
) -> TensorPlan:
    if entry.same_as is not None or entry.bias_of is not None:
        return linked_plan(entry)
    if entry.role == "weight":
        return weight_plan(entry, recipe)
    return activation_plan(entry, sketches.get(entry.range_of or entry.name), recipe)


def _refuse_invalid_values(layout: Layout, sketches: Mapping[str, TensorSketch]) -> None:
    for key, entry in layout.entries.items():
        if not entry.needs_data:
            continue
        sketch = sketches.get(entry.range_of or entry.name)
        if sketch is not None and sketch.count and not sketch.nan + sketch.inf:
            continue
        users = ", ".join(repr(name) for name in layout.users(key)[:3])
        if sketch is None or sketch.count == 0:
            raise DataError(
                f"tensor {entry.name!r} was never seen with values during calibration; give data "
                f"that reaches it, or exclude the nodes that use it ({users})."
            )
        raise DataError(
            f"tensor {entry.name!r} has {sketch.nan:,} NaN and {sketch.inf:,} "
            f"infinite values among {sketch.count:,} during calibration; fix the model or "
            f"the data, or exclude the nodes that use it ({users})."
        )


_UNSIGNED = (
    "wrote int8 activations as uint8, 128 higher (the same numbers): on x86 ONNX Runtime computes "
    "in float around int8 ones that have two readers; the target arm-cpu keeps int8"
)


def _absorb_activations(model: ir.Model, layout: Layout, plan: QuantPlan) -> QuantPlan:
    """Return the plan without each Relu or Clip whose work the quantizer behind it does exactly.

    One that a node reads past the quantizer stays, and the quantizer before it goes instead.
    """
    model_nodes = {node.name or "": node for node in model.graph.all_nodes()}
    tensors, nodes = dict(plan.tensors), dict(plan.nodes)
    sharing = defaultdict[str, list[str]](list)
    for key, planned in tensors.items():
        sharing[planned.same_as or ""].append(key)
    # Backwards, so that of two in a row the second is gone before the first is looked at.
    for key, entry in reversed(layout.entries.items()):
        if entry.absorbed_by is None:
            continue
        node = model_nodes[entry.absorbed_by]
        target = nodes[entry.absorbed_by].outputs[0]  # None where the clip behind it stays
        exact = target is None or may_absorb(node, plan, target)
        if plan.recipe.emulate.keep_activations or not exact:
            # It gets the parameters that it shares as its own.
            root = plan.tensors[plan.root(key)]
            tensors[key] = msgspec.structs.replace(root, tensor=entry.name)
            continue
        if target is None or _is_read_in_float(node.outputs[0], nodes):
            decision, behind = _plan_of_kept_clip(node, target, nodes), None
        else:
            behind = target
            decision = plan_node(node, outputs=(target,), action="absorb", reason=ABSORBED)
        producer = entry.value.producer()
        assert producer is not None
        writer = nodes[producer.name or ""]
        outputs = tuple(behind if used == key else used for used in writer.outputs)
        nodes[producer.name or ""] = msgspec.structs.replace(writer, outputs=outputs)
        nodes[entry.absorbed_by] = decision
        shared = tensors.pop(key).same_as
        for other in sharing.get(key, ()):
            linked = tensors.get(other)
            if linked is not None and linked.same_as == key:  # else absorbed, or kept since
                tensors[other] = msgspec.structs.replace(linked, same_as=shared)
                sharing[shared or ""].append(other)
    return msgspec.structs.replace(plan, tensors=tensors, nodes=nodes)


def _plan_of_kept_clip(
    node: ir.Node, target: str | None, nodes: Mapping[str, NodePlan]
) -> NodePlan:
    """Return the plan of a clip that is computed in float, before its quantizer if it has one."""
    users = {use.node.name or "" for use in node.outputs[0].uses()}
    readers = (nodes[user] for user in users if user in nodes)
    if target is None or not any(target in reader.inputs for reader in readers):
        return plan_as_float(node, "the nodes that read it are float")
    return msgspec.structs.replace(nodes[node.name or ""], inputs=(None,) * len(node.inputs))


def _is_read_in_float(value: ir.Value, nodes: Mapping[str, NodePlan]) -> bool:
    """Whether somebody reads a tensor that has a quantizer as it is before that."""
    for use in value.uses():
        reader = nodes.get(use.node.name or "")  # None in bodies that stay float
        if reader is None or (reader.inputs[use.idx] is None and reader.action != "absorb"):
            return True
    return False


def _round_convolutions_by_squant(plan: QuantPlan) -> QuantPlan:
    """Return the plan with weights of convolutions rounded by SQuant, if stored as integers."""
    if plan.recipe.emulate.weight_pairs:
        return plan
    keys = (node.inputs[1] for node in plan.nodes.values() if node.op == "Conv" and node.quantized)
    changed = {}
    for key in keys:
        weight = None if key is None else plan.tensors[key]
        if key is None or weight is None or weight.role != "weight" or weight.same_as is not None:
            continue
        if weight.qtype.is_integer and weight.qtype.bits <= 16:
            changed[key] = msgspec.structs.replace(weight, rounding="squant")
    return plan.with_tensors(changed)


def _nothing_quantized(model: ir.Model, plan: QuantPlan) -> str:
    if not plan.nodes:
        return "nothing in this model depends on its inputs, so there is nothing to quantize."
    reasons = sorted({f"{n.op}: {n.reason}" for n in plan.nodes.values() if n.reason})
    shown = "; ".join(reasons[:3]) + ("; …" if len(reasons) > 3 else "")
    remedy = "widen the selection"
    if not plan.recipe.enters_bodies and next(iter(model.graph.subgraphs()), None) is not None:
        remedy += ", or set select.subgraphs to quantize inside If, Loop and Scan bodies"
    return f"nothing in this model was quantized ({shown}); {remedy}."
