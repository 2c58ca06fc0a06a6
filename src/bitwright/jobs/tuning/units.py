"""The units of a plan, and what each adds to the error of the outputs in each of its states.

Errors are exact: each unit runs by itself among float ones, and the outputs are compared. Noise of
different units is close to uncorrelated, so that errors add up; where their sum is far from the
error of the whole, what goes when a unit becomes float counts instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bitwright.data import Sample
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.opening import Prepared
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.sensitivity import NodeVariants, open_variants
from bitwright.jobs.tuning.states import Unit, with_states
from bitwright.plan import QuantPlan
from bitwright.support.engines import LOCAL, Engine

__all__ = ["UnitErrors", "find_units", "measure_errors", "unit_edges"]

MAX_UNITS = 160
"""How many units are told apart, those with the largest local error; others stay as planned."""
ERROR_SAMPLES = 8
ADDITIVE = (0.5, 2.0)
"""Between these shares of the error of the whole, the errors of units count as adding up."""


class UnitErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The error of each unit in each state, as noise over signal of the outputs."""

    units: tuple[Unit, ...]
    errors: dict[str, dict[str, float]]
    """State -> unit -> error; in float, none has any."""
    total: float
    """The error with all units as they are planned."""
    edges: tuple[tuple[int, int, int], ...] = ()
    """(Unit, unit that reads its tensor, elements of it)."""

    @property
    def additivity(self) -> float:
        """The error of the whole as a share of the sum over units."""
        summed = sum(self.errors["int8"].values())
        return self.total / summed if summed else 1.0

    def shares(self, count: int) -> tuple[tuple[str, float], ...]:
        """Return the units that make most of the error, and their shares of it."""
        errors = self.errors["int8"]
        summed = sum(errors.values()) or 1.0
        ranked = sorted(errors, key=lambda name: -errors[name])[:count]
        return tuple((name, errors[name] / summed) for name in ranked if errors[name] > 0)


def find_units(prepared: Prepared, plan: QuantPlan, samples: Sequence[Sample]) -> UnitErrors:
    """Return the units of a plan without their errors, where only their costs are asked for."""
    measuring = Measuring(samples=samples[:1], providers=prepared.providers, progress=False)
    variants = open_variants(prepared.source, plan, measuring, MAX_UNITS)
    units = _units(variants, plan)
    names = [unit.node for unit in units]
    errors = {"int8": dict.fromkeys(names, 0.0)}
    return UnitErrors(units=units, errors=errors, total=0.0, edges=unit_edges(variants, names))


def measure_errors(
    prepared: Prepared,
    plan: QuantPlan,
    samples: Sequence[Sample],
    states: Sequence[str],
    *,
    engine: Engine = LOCAL,
    report: Callable[[str], None] = lambda line: None,
) -> UnitErrors:
    """Measure every unit of a plan in each of these states."""
    measuring = Measuring(
        samples=samples[:ERROR_SAMPLES],
        providers=prepared.providers,
        engine=engine,
        progress=False,
    )
    variants = open_variants(prepared.source, plan, measuring, MAX_UNITS)
    units = _units(variants, plan)
    report(f"measuring the error of {len(units)} units on {len(variants.samples)} samples")
    found = variants.run("alone")
    total = variants.total().loss
    errors = {"int8": {name: found[place,].loss for name, place in variants.unit_of.items()}}
    result = UnitErrors(
        units=units, errors=errors, total=total, edges=unit_edges(variants, [u.node for u in units])
    )
    if not ADDITIVE[0] <= result.additivity <= ADDITIVE[1]:
        errors["int8"] = _regained(variants, errors["int8"], total)
    for state in states:
        if state not in ("int8", "float"):
            errors[state] = _alone_in(prepared, plan, units, state, measuring)
    return msgspec.structs.replace(result, errors=_made_monotone(errors))


def _units(variants: NodeVariants, plan: QuantPlan) -> tuple[Unit, ...]:
    named = []
    for name, place in variants.unit_of.items():
        cut = variants.units.cuts[place]
        inside = [node.name or "" for node in cut.float_nodes]
        nodes = tuple(
            node
            for node in dict.fromkeys([name, *inside])
            if node in plan.nodes and plan.nodes[node].action == "quantize"
        )
        named.append(Unit(node=name, op=plan.nodes[name].op, nodes=nodes))
    return tuple(named)


def _regained(variants: NodeVariants, alone: Mapping[str, float], total: float) -> dict[str, float]:
    """Return the mean of what each unit adds by itself, and of what goes without it."""
    without = variants.run("without")
    return {
        name: (alone[name] + max(total - without[place,].loss, 0.0)) / 2
        for name, place in variants.unit_of.items()
    }


def _alone_in(
    prepared: Prepared, plan: QuantPlan, units: Sequence[Unit], state: str, measuring: Measuring
) -> dict[str, float]:
    """Return the error of each unit by itself, all in another state."""
    changed = with_states(prepared, plan, units, {unit.node: state for unit in units})
    fitting = open_for_plan(prepared.source, changed, prepared.providers)
    changed = msgspec.structs.replace(changed, fingerprint=fitting.fingerprint)
    variants = open_variants(prepared.source, changed, measuring, None)
    wanted = {unit.node for unit in units} & variants.unit_of.keys()
    found = variants.run("alone")
    return {name: found[variants.unit_of[name],].loss for name in wanted}


def _made_monotone(errors: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    found = {state: dict(each) for state, each in errors.items()}
    if "w4" in found:
        for name, error in found["w4"].items():
            found["w4"][name] = max(error, found["int8"][name])
    if "a16" in found:
        for name, error in found["a16"].items():
            found["a16"][name] = min(error, found["int8"][name])
    return found


def unit_edges(variants: NodeVariants, names: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """Return which units read the tensors of which, and how many elements these have."""
    order = {name: index for index, name in enumerate(names)}
    place_of = {place: order[name] for name, place in variants.unit_of.items() if name in order}
    makers = {
        cut.float_value: place_of[place]
        for place, cut in enumerate(variants.units.cuts)
        if place in place_of
    }
    edges = []
    for place, cut in enumerate(variants.units.cuts):
        if place not in place_of:
            continue
        for value in cut.float_inputs:
            maker: Any = makers.get(value)
            if maker is not None and maker != place_of[place]:
                edges.append((maker, place_of[place], _elements(value)))
    return tuple(sorted(set(edges)))


def _elements(value: Any) -> int:
    """Return how many numbers a tensor has; open dimensions count as one."""
    count = 1
    for size in value.shape or ():
        count *= size if isinstance(size, int) else 1
    return count
