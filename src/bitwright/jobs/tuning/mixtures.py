"""The models of a static plan: its units as planned, in 16 bits, with 4-bit weights, or float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.assess.clock import middle_sized
from bitwright.assess.verdict import stays_float
from bitwright.data import Sample
from bitwright.errors import RecipeError
from bitwright.graph import clone_model, iter_values, written_size
from bitwright.jobs.fine_tuning.constants import find_constants, with_quantized_activations
from bitwright.jobs.improve.front import FLOAT_FORM, Edge, Option
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.mixtures import Made
from bitwright.jobs.improve.scorer import Runnable
from bitwright.jobs.improve.states import Unit, with_states
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.placing import estimate_parts
from bitwright.jobs.qat import open_for_changed
from bitwright.jobs.sensitivity import NodeVariants
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.tuning.units import (
    UnitErrors,
    find_units,
    measure_errors,
    open_unit_variants,
)
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
class StaticMixtures:
    """The models of one static plan.

    What their units cost and lose is measured when a mixture is first asked for: the plan as it is,
    and float, need none of it.
    """

    open: Callable[[QuantPlan], Prepared]
    """Gives the float model that a plan is for."""
    plan: QuantPlan
    name: str
    journal: Journal
    samples: Callable[[], Sequence[Sample]]
    """Gives the samples that errors are measured on, where they are not known yet."""
    request: TuneRequest
    before: StaticMixtures | None = None
    """Another plan with the same nodes: the errors of equal units hold."""
    _base: Made | None = field(default=None, init=False)

    @cached_property
    def prepared(self) -> Prepared:
        """The float model."""
        return self.open(self.plan)

    @cached_property
    def _variants(self) -> NodeVariants:
        return open_unit_variants(
            self.prepared,
            self.plan,
            self.make({}).model,
            self.samples(),
            before=None if self.before is None else self.before.units,
            engine=self.request.calibration.engine,
        )

    @property
    def stays_float(self) -> bool:
        """Whether the plan quantizes nothing."""
        return stays_float(self.plan)

    @property
    def _states(self) -> tuple[str, ...]:
        # Integer operators have one form only.
        one_form = not self.plan.recipe.output_format.pairs
        return TIME_STATES if one_form or self.request.goal.is_timed else SIZE_STATES

    @cached_property
    def errors(self) -> UnitErrors:
        """The units, and what they lose in each state."""
        before = None if self.before is None else (self.before.plan, self.before.errors)
        return keep_figures(
            self.journal,
            f"errors/{self.name}/{','.join(self._states)}",
            UnitErrors,
            lambda: measure_errors(
                self._variants, self._states, before=before, report=self.request.report
            ),
        )

    @cached_property
    def _costs(self) -> UnitCosts:
        if self.request.goal.is_timed:
            sample = middle_sized(self.samples())
            return estimate_times(self.prepared, self.plan, self.units, [sample])
        return measure_bytes(self.prepared, self.plan, self.make({}).model, self.units)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The units that have states."""
        name = f"units/{self.name}"
        return keep_figures(
            self.journal, name, tuple[Unit, ...], lambda: find_units(self._variants)
        )

    @property
    def is_measured(self) -> bool:
        """Whether it is known what units cost, and so which mixtures there are."""
        return "options" in self.__dict__

    @cached_property
    def options(self) -> list[list[Option]]:
        """For each unit its states, with their cost and error."""
        errors = self.errors.errors
        return [
            [
                Option(
                    state,
                    self._cost(unit.node, state),
                    0.0 if state == "float" else errors[state][unit.node],
                    FLOAT_FORM if state == "float" else _INTEGERS,
                )
                for state in self._states
                if state == "float" or unit.node in errors[state]
            ]
            for unit in self.units
        ]

    def _cost(self, unit: str, state: str) -> float:
        """Return the cost of a state; of two that cost the same, the planned one is cheaper."""
        costs = self._costs.costs
        cost = costs[state][unit]
        if state == "int8" and self.request.goal.keep_quantized:
            cost = min(cost, ELSEWHERE * costs["float"][unit])
        return cost + (state != "int8") * CHANGE_COST * self._whole

    @cached_property
    def _whole(self) -> float:
        return self._costs.fixed + sum(self._costs.costs["int8"].values())

    @property
    def edges(self) -> Sequence[Edge]:
        """The tensors between units."""
        return self._costs.edges

    @property
    def fixed(self) -> float:
        """What everything else costs."""
        return self._costs.fixed

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """The units that make most of the error, and their shares of it."""
        return self.errors.shares(5)

    def make(self, states: Mapping[str, str]) -> Made:
        """Make a model; units that are not named are as planned."""
        if not states and self._base is not None:
            return self._base
        prepared, plan = self.prepared, self.plan
        if states:
            plan = with_states(prepared, plan, self._changed(states), states)
        if plan.recipe != prepared.recipe:
            prepared, plan = open_for_changed(prepared, plan)
        written = open_quantized(prepared, Planned(plan))
        if written.session is None:
            raise RecipeError(
                f"models of recipe {plan.recipe.name!r} cannot be run here, and tuning runs them; "
                "take another recipe."
            )
        made = Made(written.session, written.model, self.request.providers, plan=written.plan)
        if not states:
            self._base = made
        return made

    def _changed(self, states: Mapping[str, str]) -> list[Unit]:
        """Return the units; with the last of them, what was not told apart becomes float, too.

        Else a model with more nodes than are measured could never be float, whatever it loses.
        """
        units = list(self.units)
        if any(states.get(unit.node) != "float" for unit in units):
            return units
        known = {node for unit in units for node in unit.nodes}
        rest = (name for name, node in self.plan.nodes.items() if node.quantized)
        nodes = (*units[-1].nodes, *(name for name in rest if name not in known))
        return [*units[:-1], msgspec.structs.replace(units[-1], nodes=nodes)]

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


_Figures = TypeVar("_Figures")


def keep_figures(
    journal: Journal, name: str, kind: type[_Figures], measure: Callable[[], _Figures]
) -> _Figures:
    """Return figures of the journal, or measure them and write them there."""
    known = journal.get(name)
    if known is not None:
        return msgspec.convert(known, kind)
    found = measure()
    journal[name] = msgspec.to_builtins(found)
    return found


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
