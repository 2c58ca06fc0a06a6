"""Biases that were shifted after everything was decided: scales that hold their new numbers."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.decide.layout.entries import Entry
from bitwright.decide.limits import apply_limits
from bitwright.decide.scales.parameters import shift_for_bias, weight_plan
from bitwright.graph import iter_values
from bitwright.graph.constants import constant_of
from bitwright.numerics.types import INT32
from bitwright.plan import QuantPlan, TensorPlan

__all__ = ["fit_biases"]


def fit_biases(model: ir.Model, plan: QuantPlan) -> QuantPlan:
    """Return the plan with scales for the biases that it shifts; `model` has them shifted.

    An int32 bias at (input scale x weight scale) has room for any shift. One with a scale of its
    own gets the scale of its new range, and a narrow one is doubled until it fits.
    """
    values = dict(iter_values(model))
    # An addend beside activations is laid out as they are.
    operands = {key for n in plan.nodes.values() if n.op == "Add" for key in n.inputs}
    tensors = dict(plan.tensors)
    for key, entry in plan.tensors.items():
        value = values.get(entry.tensor)
        array = constant_of(value)
        if entry.tensor not in plan.bias_shifts or value is None or array is None:
            continue
        if entry.bias_of is None and entry.same_as is None:
            tensors[key] = _own_scale(entry, value, plan, operand=key in operands)
        elif entry.bias_of is not None and entry.qtype != INT32:
            bare = msgspec.structs.replace(entry, shift=0)
            found = msgspec.structs.replace(plan, tensors={**tensors, key: bare}).parameters(key)
            shift = shift_for_bias(np.asarray(found.scale), array, entry.qtype, found.axis)
            tensors[key] = msgspec.structs.replace(entry, shift=shift)
    if tensors == plan.tensors:
        return plan
    return apply_limits(model, msgspec.structs.replace(plan, tensors=tensors))


def _own_scale(entry: TensorPlan, value: ir.Value, plan: QuantPlan, *, operand: bool) -> TensorPlan:
    override = plan.recipe.overrides.get(entry.tensor)
    # The type may have been turned to unsigned for the runtime; the entry knows.
    wanted = Entry(
        entry.tensor,
        value,
        "weight",
        entry.qtype,
        entry.axis,
        entry.block_size,
        override=override,
        operand=operand,
    )
    fitted = weight_plan(wanted, plan.recipe)
    return msgspec.structs.replace(entry, scale=fitted.scale, zero_point=fitted.zero_point)
