"""Scales with which biases fit: in int32 by those of their weights, in narrow types by doubling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.entries import Entry, Layout
from bitwright.decide.limits import apply_limits
from bitwright.decide.ops import LINEAR_OPS, RULES
from bitwright.decide.ops.linear import bias_sum_behind
from bitwright.decide.scales.parameters import weight_plan
from bitwright.graph import constant_of, iter_values
from bitwright.numerics import INT32, QType, along_axis
from bitwright.numerics.scales import ceil_scale, smallest_bias_scale
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.recipe import ScaleKind, find_override
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True)
class _Bias:
    """Numbers that are added to a product, and the entries of its two factors."""

    array: Array
    source: str
    weight: str
    tile: int


def prevent_bias_overflow(model: ir.Model, layout: Layout, plan: QuantPlan) -> QuantPlan:
    """Return the plan with larger weight scales where int32 biases would overflow.

    Such a bias lies at (input x weight) scale. A weight that small beside it has no say in the
    result.
    """
    widened: dict[str, TensorPlan] = {}
    for bias in (*_stored_biases(layout), *_float_biases(model, layout, plan)):
        weight = widened.get(bias.weight, plan.tensors[bias.weight])
        override = layout.entries[bias.weight].override
        is_given = override is not None and override.scale is not None
        if weight.scale is None or is_given:
            continue
        source = plan.parameters(bias.source).scale
        scale = np.asarray(weight.scale, np.float64)
        if np.ndim(source):
            continue
        wider = widened_for_bias(scale, source, bias.array, bias.tile, plan.recipe.scales)
        if wider is not None:
            widened[bias.weight] = msgspec.structs.replace(
                weight, scale=wider.tolist(), method=f"{weight.method}, widened for the bias"
            )
    return plan.with_tensors(widened)


def _stored_biases(layout: Layout) -> Iterator[_Bias]:
    for entry in layout.entries.values():
        if entry.bias_of is None or entry.qtype != INT32:
            continue  # weights are not read for this
        array = constant_of(entry.value)
        if array is not None:
            yield _Bias(array, *entry.bias_of, entry.tile)


def _float_biases(model: ir.Model, layout: Layout, plan: QuantPlan) -> Iterator[_Bias]:
    """Yield biases that stay float in the file, of products on quantized tensors.

    ONNX Runtime stores them in int32 when it opens the model, whether they fit or not.
    """
    if not plan.recipe.output_format.pairs:
        return
    for node in model.graph.all_nodes():
        planned = plan.nodes.get(node.name or "")
        if node.op_type not in LINEAR_OPS or planned is None or not planned.quantized:
            continue
        rule = RULES[node.op_type]
        array = _float_bias(node, rule.bias, plan)
        source, weight = planned.inputs[0], planned.inputs[1]
        if array is None or source is None or weight is None:
            continue
        entry = layout.entries[weight]
        integers = entry.qtype.is_integer and plan.tensors[source].qtype.is_integer
        if entry.role != "weight" or entry.block_size or not integers:
            continue
        tile = 1 if rule.tile is None else rule.tile(node)
        scale = np.asarray(plan.tensors[weight].scale)
        if not scale.ndim or array.size == tile * scale.size:
            yield _Bias(array, source, weight, tile)


def _float_bias(node: ir.Node, index: int | None, plan: QuantPlan) -> Array | None:
    """Return the vector that is added to a product in float, in the node itself or behind it."""
    if index is not None:
        given = len(node.inputs) > index and plan.nodes[node.name or ""].inputs[index] is None
        array = constant_of(node.inputs[index]) if given else None
    else:
        found, refuse = bias_sum_behind(node), RULES["Add"].refuse
        if found is None or not found.may_become_gemm:
            return None
        if refuse is not None and refuse(found.node) is not None:
            return None  # a mask
        adding = plan.nodes.get(found.node.name or "")
        stored = adding is not None and adding.inputs[found.index] is not None
        array = None if stored else constant_of(found.bias)
    is_vector = array is not None and array.ndim == 1 and bool(np.all(np.isfinite(array)))
    return array if is_vector else None


def fit_narrow_biases(layout: Layout, plan: QuantPlan) -> QuantPlan:
    """Return the plan with the scales of int16 biases doubled until they fit.

    This is done once all scales are final.

    A weight would lose as many bits if its scale were enlarged instead, and the bias hardly has
    any to lose: it is added after a shift, as hardware with narrow biases does.
    """
    fitted = {}
    for key, entry in layout.entries.items():
        if entry.bias_of is None or entry.qtype == INT32:
            continue
        bias = constant_of(entry.value)
        if bias is not None:
            fitted[key] = _fitted(plan, key, bias)
    return plan.with_tensors(fitted)


def _fitted(plan: QuantPlan, key: str, bias: Array) -> TensorPlan:
    """Return the entry of a narrow bias with its scale doubled as often as it has to be."""
    entry, found = plan.tensors[key], plan.parameters(key)
    scale = np.ldexp(np.asarray(found.scale), -entry.shift)
    shift = shift_for_bias(scale, bias, entry.qtype, found.axis)
    return msgspec.structs.replace(entry, shift=shift)


def fit_biases(model: ir.Model, plan: QuantPlan) -> QuantPlan:
    """Return the plan with scales for the biases that it shifts; `model` has them shifted.

    An int32 bias at (input scale x weight scale) has room for any shift. One with a scale of its
    own gets the scale of its new range, and a narrow one is doubled until it fits.
    """
    values = dict(iter_values(model))
    # An addend beside activations is laid out as they are.
    operands = {key for n in plan.nodes.values() if n.op == "Add" for key in n.inputs}
    changed: dict[str, TensorPlan] = {}
    for key, entry in plan.tensors.items():
        value = values.get(entry.tensor)
        array = constant_of(value)
        if entry.tensor not in plan.bias_shifts or value is None or array is None:
            continue
        if entry.bias_of is None and entry.same_as is None:
            # The type may have been turned to unsigned for the runtime; the entry knows.
            wanted = Entry(entry.tensor, value, "weight", entry.qtype, entry.axis, entry.block_size)
            wanted.override = find_override(plan.recipe.overrides, entry.tensor)
            wanted.operand = key in operands
            own = weight_plan(wanted, plan.recipe)
            changed[key] = msgspec.structs.replace(
                entry, scale=own.scale, zero_point=own.zero_point
            )
        elif entry.bias_of is not None and entry.qtype != INT32:
            changed[key] = _fitted(plan, key, array)
    if all(entry == plan.tensors[key] for key, entry in changed.items()):
        return plan
    return apply_limits(model, plan.with_tensors(changed))


def shift_for_bias(scale: Array, bias: Array, qtype: QType, axis: int | None) -> int:
    """Return how often the scale of a bias has to be doubled until nothing of it is clipped."""
    size = np.abs(bias.astype(np.float64))
    steps = float(np.max(size / along_axis(scale, axis, size.ndim), initial=0.0))
    return max(int(np.ceil(np.log2(steps / qtype.highest))), 0) if steps else 0


def widened_for_bias(
    scale: Array, source: Any, bias: Array, tile: int, kind: ScaleKind = "float"
) -> Array | None:
    """Return a weight's scale enlarged where its int32 bias would overflow; None if nowhere.

    The enlarged scales are of the same kind as the others of the model.
    """
    if scale.ndim:
        groups = np.abs(bias.astype(np.float64)).reshape(-1, tile, scale.size)
        smallest = smallest_bias_scale(groups.max(axis=(0, 1)), per_channel=True)
    else:
        smallest = smallest_bias_scale(bias)
    product = source * scale
    wider = np.where(product < smallest, ceil_scale(scale * (smallest / product), kind), scale)
    return wider.astype(np.float32).astype(np.float64) if np.any(wider != scale) else None
