"""The models of a static plan: its units as planned, in 16 bits, with 4-bit weights, or float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bitwright.assess.clock import middle_sized
from bitwright.data import Sample
from bitwright.errors import RecipeError
from bitwright.graph import clone_model, iter_values, written_size
from bitwright.jobs.fine_tuning.constants import find_constants, with_quantized_activations
from bitwright.jobs.improve.front import FLOAT_FORM, Edge, Option
from bitwright.jobs.improve.mixtures import Made, Mixtures, UnitTable
from bitwright.jobs.improve.scorer import Runnable
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.placing import estimate_parts
from bitwright.jobs.qat import open_for_changed
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.tuning.units import UnitErrors, measure_errors, open_unit_variants
from bitwright.plan import QuantPlan

SIZE_STATES: tuple[str, ...] = ("w4", "int8", "a16", "float")
TIME_STATES: tuple[str, ...] = ("int8", "float")
"""ONNX Runtime computes what has 16-bit activations or 4-bit weights in float: no gain there."""
_INTEGERS = "integers"
CHANGE_COST = 1e-4
"""The share of the whole cost that a change is taken to cost: for nothing, none is made."""

ELSEWHERE = 0.5
"""The share of its time in float that a unit counts for at most, where units are to stay quantized
although this machine gains little by it."""


@dataclass
class StaticMixtures(Mixtures):
    """The models of one static plan."""

    request: TuneRequest
    open: Callable[[QuantPlan], Prepared]
    """Gives the float model that a plan is for."""
    samples: Callable[[], Sequence[Sample]]
    """Gives the samples that errors are measured on, where they are not known yet."""
    before: StaticMixtures | None = None
    """Another plan with the same nodes: the errors of equal units hold."""

    @cached_property
    def prepared(self) -> Prepared:
        """The float model."""
        return self.open(self.plan)

    def measure(self) -> UnitTable:
        """Measure what each unit loses, and look up what it costs."""
        goal, report, before = self.request.goal, self.request.report, self.before
        # Integer operators have one form only.
        one_form = not self.plan.recipe.output_format.pairs
        states = TIME_STATES if one_form or goal.is_timed else SIZE_STATES
        known = None
        if before is not None:
            errors = {"int8": before.table.planned_errors}
            known = before.plan, UnitErrors(before.table.units, errors)
        variants = open_unit_variants(
            self.prepared,
            self.plan,
            self._base.model,
            self.samples(),
            before=None if known is None else known[1].units,
            engine=self.request.calibration.engine,
        )
        units, errors = measure_errors(variants, states, before=known, report=report)
        if goal.is_timed:
            sample = middle_sized(self.samples())
            costs = estimate_times(self.prepared, self.plan, units, [sample])
        else:
            costs = measure_bytes(self.prepared, self.plan, self._base.model, units)
        change = CHANGE_COST * (costs.fixed + sum(costs.costs["int8"].values()))

        def price(unit: str, state: str) -> float:
            """Return the cost of a state; of two that cost the same, the planned one is cheaper."""
            cost = costs.costs[state][unit]
            if state == "int8" and goal.keep_quantized:
                cost = min(cost, ELSEWHERE * costs.costs["float"][unit])
            return cost + (state != "int8") * change

        def options_of(unit: str) -> Iterator[Option]:
            for state in states:
                cost = price(unit, state)
                if state == "float":
                    yield Option(state, cost, 0.0, FLOAT_FORM)
                elif unit in errors[state]:
                    yield Option(state, cost, errors[state][unit], _INTEGERS)

        options = tuple(tuple(options_of(unit.node)) for unit in units)
        edges = tuple(costs.edges)
        return UnitTable(units=units, options=options, edges=edges, fixed=costs.fixed)

    @cached_property
    def _base(self) -> Made:
        """The plan as it is."""
        return self._open(self.prepared, self.plan)

    def make(self, states: Mapping[str, str]) -> Made:
        """Make a model; units that are not named are as planned."""
        if not states:
            return self._base
        plan = self.planned(self.prepared, states)
        return self._open(*open_for_changed(self.prepared, plan))

    def _open(self, prepared: Prepared, plan: QuantPlan) -> Made:
        written = open_quantized(prepared, Planned(plan))
        if written.session is None:
            raise RecipeError(
                f"models of recipe {plan.recipe.name!r} cannot be run here, and tuning runs them; "
                "take another recipe."
            )
        return Made(written.session, written.model, self.request.providers, plan=written.plan)

    def probes(self) -> Mapping[str, Callable[[], Runnable]]:
        """Return models in which only weights, or only activations, are quantized."""
        return {"W8A32": self._weights_only, "A8W32": self._activations_only}

    def _weights_only(self) -> Runnable:
        model = clone_model(self.prepared.model)
        for constant in find_constants(model, self.plan).values():
            if constant.role == "weight":
                rounded = constant.stored(self.plan.parameters(constant.key))
                value = model.graph.initializers[constant.name]
                value.const_value = ir.tensor(rounded, name=constant.name)
        return Runnable(None, model, self.request.providers)

    def _activations_only(self) -> Runnable:
        prepared = self.prepared
        constants = find_constants(prepared.model, self.plan)
        model = with_quantized_activations(prepared.model, self.plan, constants)
        # Between integers, the runtime would round the weights that are float here.
        return Runnable(None, model, self.request.providers, float_weights=True)


# What units cost -------------------------------------------------------------------------------


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
