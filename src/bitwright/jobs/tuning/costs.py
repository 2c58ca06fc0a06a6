"""What each unit costs in each state: microseconds by the cost table of the CPU, or bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.graph import iter_values, written_size
from bitwright.jobs.improve.front import Edge
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.placing import estimate_parts
from bitwright.plan import QuantPlan

__all__ = ["UnitCosts", "estimate_times", "measure_bytes"]

_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """The cost of each unit in each state, and of all that is in no unit."""

    costs: Mapping[str, Mapping[str, float]]
    """State -> unit -> microseconds or bytes."""
    fixed: float = 0.0
    """What everything else costs."""
    edges: Sequence[Edge] = field(default=())
    """The tensors between units, with what it takes to convert them."""


def estimate_times(
    prepared: Prepared, plan: QuantPlan, units: Sequence[Unit], samples: Sequence[Sample]
) -> UnitCosts:
    """Return what each unit takes by the costs that the plan is placed by.

    Where sizes are not known, each counts the same, and half of that in integers.
    """
    found = estimate_parts(prepared, plan, [unit.nodes for unit in units], samples)
    names = [unit.node for unit in units]
    if found is None:
        return UnitCosts(
            costs={"int8": dict.fromkeys(names, 1.0), "float": dict.fromkeys(names, 2.0)}
        )
    times = {"int8": found.in_integers, "float": found.in_float}
    return UnitCosts(
        costs={state: dict(zip(names, each, strict=True)) for state, each in times.items()},
        fixed=found.fixed,
        edges=[Edge(*ends, time) for ends, time in sorted(found.borders.items())],
    )


def measure_bytes(
    prepared: Prepared, plan: QuantPlan, quantized: ir.Model, units: Sequence[Unit]
) -> UnitCosts:
    """Return the bytes of each unit's weights in each state; all else is fixed."""
    values = dict(iter_values(prepared.model))
    costs: dict[str, dict[str, float]] = {state: {} for state in ("w4", "int8", "a16", "float")}
    for unit in units:
        weights = {
            key
            for node in unit.nodes
            for key in plan.nodes[node].inputs
            if key is not None and plan.tensors[key].role == "weight"
        }
        sizes = [_elements(values.get(plan.tensors[key].tensor)) for key in weights]
        scales = [np.size(plan.parameters(key).scale) for key in weights]
        stored = [max(plan.tensors[key].qtype.bits, 8) / 8 for key in weights]
        planned = sum(n * size for n, size in zip(sizes, stored, strict=True))
        extra = _SCALE_BYTES * sum(scales)
        costs["int8"][unit.node] = costs["a16"][unit.node] = planned + extra
        costs["w4"][unit.node] = sum(math.ceil(n / 2) for n in sizes) + extra
        costs["float"][unit.node] = 4.0 * sum(sizes)
    size = float(written_size(quantized))
    return UnitCosts(costs=costs, fixed=size - sum(costs["int8"].values()))


def _elements(value: ir.Value | None) -> int:
    if value is None or value.const_value is None:
        return 0
    return int(np.prod(value.const_value.shape.numpy(), dtype=np.int64))
