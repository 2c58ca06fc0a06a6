"""The units of a plan, and what each adds to the error of the outputs in each of its states.

Each unit runs by itself among float ones, and the outputs are compared. Of many units, one sample
tells which those of most error are, and only these run on all samples. Noise of different units is
close to uncorrelated, so that errors add up; where their sum is far from the error of the whole,
what goes when a unit becomes float counts instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx_ir as ir

from bitwright.assess import open_units
from bitwright.data import Sample
from bitwright.decide.ops import op_types
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.improve.states import Unit, with_states
from bitwright.jobs.opening import Prepared
from bitwright.jobs.qat import open_for_changed
from bitwright.jobs.sensitivity import NodeVariants, open_variants, units_of, variants_of
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.support.engines import LOCAL, Engine

MAX_UNITS = 160
"""How many units are told apart, those with the largest local error; others stay as planned."""
ERROR_SAMPLES = 8
MANY_UNITS = 16
"""From so many units on, half of these samples will do: each unit is one of many."""
MANY_ERRORS = 60
"""From so many units on, only the worst run on all of these samples."""
MIN_WORST, WORST_SHARE = 16, 1 / 3
"""How many these are at least, and which share: one sample may take one of them for less."""
_MOVING = op_types(lambda op: op.moves)
ADDITIVE = (0.5, 2.0)
"""Between these shares of the error of the whole, the errors of units count as adding up."""


class UnitErrors(NamedTuple):
    """The error of each unit in each state, as noise over signal of the outputs."""

    units: tuple[Unit, ...]
    errors: dict[str, dict[str, float]]
    """State -> unit -> error; in float, none has any."""


def open_unit_variants(
    prepared: Prepared,
    plan: QuantPlan,
    model: ir.Model,
    samples: Sequence[Sample],
    *,
    before: Sequence[Unit] | None = None,
    engine: Engine = LOCAL,
) -> NodeVariants:
    """Return what measures the units of a plan, whose model was written already.

    `before` are those that were told apart in another plan with the same nodes.
    """
    units = open_units(prepared.model, model)
    few = len(units_of(units, plan)) < MANY_UNITS
    count = ERROR_SAMPLES if few else ERROR_SAMPLES // 2
    measuring = Measuring(
        samples=samples[:count], providers=prepared.providers, engine=engine, progress=False
    )
    if before is None:
        return variants_of(prepared, plan, model, units, measuring, MAX_UNITS)
    found = variants_of(prepared, plan, model, units, measuring, None)
    return found.only(_nodes_of(before))


def measure_errors(
    variants: NodeVariants,
    states: Sequence[str],
    *,
    before: tuple[QuantPlan, UnitErrors] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> UnitErrors:
    """Measure every unit of a plan in each of these states.

    Those that another plan has the same, whose errors are known, keep them.
    """
    units = find_units(variants)
    known = _unchanged(variants.plan, units, before)
    alone = _measure_alone(variants, [unit for unit in units if unit.node not in known], report)
    total = variants.total().loss
    errors = {"int8": {unit.node: {**known, **alone}[unit.node] for unit in units}}
    summed = sum(errors["int8"].values())
    if summed and not ADDITIVE[0] <= total / summed <= ADDITIVE[1]:
        errors["int8"] = _regained(variants, units, errors["int8"], total)
    for state in states:
        if state not in ("int8", "float"):
            errors[state] = _alone_in(variants, units, state)
    return UnitErrors(units, _made_monotone(errors))


def _measure_alone(
    variants: NodeVariants, units: Sequence[Unit], report: Callable[[str], None]
) -> dict[str, float]:
    """Return the error of each unit by itself; of many, the worst by all samples, others by one.

    Errors by one sample are too large or too small by a factor, which those by all samples tell.
    """
    guessed, worst = None, units
    if len(units) >= MANY_ERRORS:
        first = replace(variants, samples=variants.samples[:1]).only(_nodes_of(units))
        guessed = _of_units(units, first.losses())
        worst = _worst(units, guessed)
        report(f"one sample tells the {len(worst)} units of most error from {len(units)}")
    report(f"measuring the error of {len(worst)} units on {len(variants.samples)} samples")
    measured = _of_units(worst, variants.only(_nodes_of(worst)).losses())
    return measured if guessed is None else _scaled_to(guessed, measured)


def _nodes_of(units: Sequence[Unit]) -> set[str]:
    return {node for unit in units for node in unit.nodes}


def _unchanged(
    plan: QuantPlan, units: Sequence[Unit], before: tuple[QuantPlan, UnitErrors] | None
) -> dict[str, float]:
    """Return the errors of units that are in another plan as they are in this one."""
    if before is None:
        return {}
    other, errors = before

    def entries(of: QuantPlan, unit: Unit) -> list[tuple[TensorPlan, TensorPlan]]:
        nodes = [of.nodes[name] for name in unit.nodes if name in of.nodes]
        keys = [key for node in nodes for key in (*node.inputs, *node.outputs) if key is not None]
        return [(of.tensors[key], of.tensors[of.root(key)]) for key in keys]

    same = [unit for unit in units if unit in errors.units]
    return {
        unit.node: errors.errors["int8"][unit.node]
        for unit in same
        if entries(plan, unit) == entries(other, unit)
    }


def _of_units(units: Sequence[Unit], errors: Mapping[str, float]) -> dict[str, float]:
    """Return the error of each unit by itself; what it only moves is rounded the same way."""
    return {
        unit.node: max((errors[name] for name in unit.nodes if name in errors), default=0.0)
        for unit in units
    }


def find_units(variants: NodeVariants) -> tuple[Unit, ...]:
    """Return the units; one that only moves values is one with what reads them.

    Moved values keep their scale: they are rounded once, before the first of these units, and the
    error stays as long as any of them is quantized.
    """
    plan, cuts = variants.plan, variants.units.cuts
    name_of = {place: name for name, place in variants.unit_of.items()}
    makers = {cut.float_value: name_of.get(place) for place, cut in enumerate(cuts)}
    readers: dict[str, set[str | None]] = {name: set() for name in variants.unit_of}
    for place, cut in enumerate(cuts):
        for value in cut.float_inputs:
            maker = makers.get(value)
            if maker is not None and name_of.get(place) != maker:
                readers[maker].add(name_of.get(place))
    # In graph order, what reads a unit comes behind it.
    head: dict[str, str] = {}
    for name in sorted(variants.unit_of, key=lambda one: -variants.unit_of[one]):
        moves = plan.nodes[name].op in _MOVING and len(readers[name]) == 1
        head[name] = head.get(next(iter(readers[name])) or "", name) if moves else name
    units = []
    for name in variants.unit_of:
        if head[name] != name:
            continue
        members = [other for other in variants.unit_of if head[other] == name]
        inside = [
            node.name or ""
            for member in members
            for node in cuts[variants.unit_of[member]].float_nodes
        ]
        nodes = tuple(
            node
            for node in dict.fromkeys([name, *members, *inside])
            if node in plan.nodes and plan.nodes[node].action == "quantize"
        )
        units.append(Unit(node=name, op=plan.nodes[name].op, nodes=nodes))
    return tuple(units)


def _regained(
    variants: NodeVariants, units: Sequence[Unit], alone: Mapping[str, float], total: float
) -> dict[str, float]:
    """Return the mean of what each unit adds by itself, and of what goes without it.

    Of many, that is measured for the worst; the others grow as much as these together.
    """
    worst = _worst(units, alone)
    sets = [tuple(name for name in unit.nodes if name in variants.unit_of) for unit in worst]
    found = {
        unit.node: (alone[unit.node] + max(total - without.loss, 0.0)) / 2
        for unit, without in zip(worst, variants.without(sets), strict=True)
    }
    return _scaled_to(alone, found)


def _worst(units: Sequence[Unit], errors: Mapping[str, float]) -> list[Unit]:
    """Return the units of most error, which are all of a few."""
    if len(units) < MANY_ERRORS:
        return list(units)
    count = max(MIN_WORST, math.ceil(WORST_SHARE * len(units)))
    return sorted(units, key=lambda unit: -errors[unit.node])[:count]


def _scaled_to(guessed: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    """Return what was found, and of the other guesses as much more or less as for these."""
    near = sum(guessed[name] for name in found)
    factor = sum(found.values()) / near if near else 1.0
    return {name: factor * error for name, error in guessed.items()} | dict(found)


def _alone_in(variants: NodeVariants, units: Sequence[Unit], state: str) -> dict[str, float]:
    """Return the error of each unit by itself, all in another state."""
    prepared, plan = variants.prepared, variants.plan
    changed = with_states(prepared, plan, units, {unit.node: state for unit in units})
    _, changed = open_for_changed(prepared, changed)
    measuring = replace(variants.measuring, engine=LOCAL)
    others = open_variants(prepared.source, changed, measuring, None)
    known = [unit for unit in units if unit.node in others.unit_of]
    return _of_units(known, others.losses())


def _made_monotone(errors: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return errors of which fewer bits have no less, and more bits no more."""
    found = {state: dict(each) for state, each in errors.items()}
    for state, bound in (("w4", max), ("a16", min)):
        for name, error in found.get(state, {}).items():
            found[state][name] = bound(error, found["int8"][name])
    return found
