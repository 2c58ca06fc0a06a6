"""Sensitivity: how much each quantized node of a plan adds to the error of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import onnx_ir as ir

from bitwright.assess import (
    Key,
    Kind,
    NodeSensitivity,
    Proposal,
    Sensitivity,
    TotalError,
    Units,
    Variants,
    compare_models,
    compare_outputs,
    measure_variants,
    name_unit,
    open_units,
    share_interval,
)
from bitwright.data import Sample
from bitwright.decide.left_float import fall_back
from bitwright.decide.ranges.known import saturation_points
from bitwright.decide.validation import check_plan
from bitwright.errors import PlanError
from bitwright.jobs.calibration import Calibration, keep_data, take_samples
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.improve.loop import Attempt, Trail, improve
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_changed, open_for_plan
from bitwright.jobs.weight_only.job import write_weight_only
from bitwright.plan import Fallback, QuantPlan
from bitwright.run import Session
from bitwright.support import logged, show_progress

SENSITIVITY_SAMPLES = 8
"""How many samples are measured on, unless others are asked for."""
NEXT_NODES = 6
"""How many nodes of the ranking are tried as the next one that falls back."""
WRITTEN_NODES = 3
"""The same where trying means writing a model."""


@logged("measure sensitivity")
def measure_sensitivity(
    float_model: Any, plan: QuantPlan, measuring: Measuring, *, candidates: int | None = None
) -> Sensitivity:
    """Measure each quantized node of a plan; with `candidates` those with the largest local error.

    At most `measuring.limit` samples are used, else a few.
    """
    measured = open_variants(float_model, plan, measuring, candidates)
    chosen = measured.unit_of
    with show_progress(measuring.progress, "Measuring nodes", 2 * len(chosen)) as report:
        alone = measured.run("alone", report)
        without = measured.run("without", lambda done: report(len(chosen) + done))
    total = without["quantized"]
    nodes = [
        NodeSensitivity.measured(name, plan.nodes[name].op, alone[index,], without[index,], total)
        for name, index in chosen.items()
    ]
    return Sensitivity(
        plan, total.noise, nodes, len(measured.samples), measured.propose, total.loss
    )


def units_of(units: Units, plan: QuantPlan) -> dict[str, int]:
    """Return the units that a plan quantizes: the name of each, and its place among the cuts."""
    named = {
        index: name_unit(cut)[0]
        for index, cut in enumerate(units.cuts)
        if cut.is_quantized and cut.main is not None
    }
    return {
        name: index
        for index, name in named.items()
        if name in plan.nodes and plan.nodes[name].action == "quantize"
    }


def open_variants(
    float_model: Any, plan: QuantPlan, measuring: Measuring, candidates: int | None
) -> NodeVariants:
    """Return what measures the nodes of a plan, or those of them with the largest local error."""
    measuring.check("sensitivity runs every node")
    if plan.recipe.mode == "cast":
        raise PlanError(
            "sensitivity quantizes nodes one by one, and a plan of the mode cast quantizes none; "
            "`compare` shows where its error comes from."
        )
    limit = measuring.limit or SENSITIVITY_SAMPLES
    prepared = open_for_plan(float_model, plan, measuring.providers)
    check_plan(prepared.model, plan, fingerprint=prepared.fingerprint)
    # Rounding may need all samples, however few are measured on.
    calibration = replace(measuring.calibration, limit=None)
    if plan.recipe.mode == "weight-only" and plan.recipe.weights.needs_data:
        calibration = replace(keep_data(prepared, calibration), holdout=False)
    given = list(measuring.samples or ())[:limit] or take_samples(prepared, calibration, limit)
    quantized = _write(prepared, plan, calibration)
    # Its channels are equalized as those of the quantized model are: units can change places.
    units = open_units(prepared.model, quantized)
    measuring = replace(measuring, samples=given)
    return variants_of(prepared, plan, quantized, units, measuring, candidates, calibration)


def variants_of(
    prepared: Prepared,
    plan: QuantPlan,
    quantized: ir.Model,
    units: Units,
    measuring: Measuring,
    candidates: int | None,
    calibration: Calibration | None = None,
) -> NodeVariants:
    """Return what measures the nodes of a plan whose model was written already.

    `units` are those of the two models; the samples are those of `measuring`, all of them.
    """
    given = list(measuring.samples or ())
    chosen = units_of(units, plan)
    if candidates is not None and candidates < len(chosen):
        found = compare_models(units, given, measuring.pair_run, saturation_of=saturation_points)
        # Nodes that stay float lose, too: they read what others rounded. Those without a figure of
        # their own come last.
        ranked = [node.name for node in found.worst(len(found.nodes)) if node.name in chosen]
        worst = list(dict.fromkeys([*ranked, *chosen]))[:candidates]
        chosen = {name: index for name, index in chosen.items() if name in worst}
    variants, calibration = Variants(units), calibration or Calibration()
    return NodeVariants(prepared, calibration, plan, quantized, variants, chosen, given, measuring)


def _write(prepared: Prepared, plan: QuantPlan, calibration: Calibration) -> ir.Model:
    """Return the quantized model of a plan; weights are rounded by the data where it asks so."""
    if plan.recipe.mode == "weight-only":
        if not plan.recipe.weights.needs_data:
            calibration = Calibration()
        return write_weight_only(prepared, plan, calibration).model
    return emit_model(prepared, Planned(plan)).model


@dataclass(frozen=True)
class NodeVariants:
    """Measures the plan with some nodes in float, always on the same samples."""

    prepared: Prepared
    calibration: Calibration
    plan: QuantPlan
    quantized: ir.Model
    variants: Variants
    unit_of: dict[str, int]
    """Node -> the index of its unit."""
    samples: list[Sample]
    measuring: Measuring
    """How they are run."""

    @property
    def units(self) -> Units:
        """The units of the two models."""
        return self.variants.units

    @cached_property
    def _float(self) -> Any:
        # What is lost by simulating hardware comes back with no node: it is no part of the loss.
        return Session(self.prepared.model, providers=self.prepared.providers)

    def run(
        self, kind: Kind, report: Callable[[int], None] = lambda done: None
    ) -> dict[Key, TotalError]:
        """Measure every node by itself."""
        return self._measure(kind, [(unit,) for unit in self.unit_of.values()], report)

    def only(self, nodes: Collection[str]) -> NodeVariants:
        """Return what measures no other nodes than these."""
        return replace(self, unit_of={n: unit for n, unit in self.unit_of.items() if n in nodes})

    def losses(self) -> dict[str, float]:
        """Return the loss that each node makes by itself."""
        found = self.run("alone")
        return {name: found[unit,].loss for name, unit in self.unit_of.items()}

    def total(self) -> TotalError:
        """Return the error of the outputs with all nodes quantized."""
        return self._measure("without", [])["quantized"]

    def without(self, sets: Sequence[tuple[str, ...]]) -> list[TotalError]:
        """Return the error of the outputs for each set of nodes that is float."""
        places = [tuple(sorted(self.unit_of[name] for name in names)) for names in sets]
        found = self._measure("without", places)
        return [found[place] for place in places]

    def write(self, plan: QuantPlan) -> tuple[QuantPlan, TotalError]:
        """Return the plan as it can be applied, and the error of its outputs."""
        quantized = self.quantized
        if plan != self.plan:
            prepared, plan = open_for_changed(self.prepared, plan)
            check_plan(prepared.model, plan, fingerprint=plan.fingerprint)
            quantized = _write(prepared, plan, self.calibration)
        session = Session(quantized, providers=self.prepared.providers)
        found = compare_outputs(
            self._float.run, session.run, self.samples, model=self.prepared.model
        )
        return plan, found.total

    def neighbours(self, nodes: Iterable[str]) -> set[str]:
        """Return the nodes that read what these write, or write what these read."""
        names = {place: name for name, place in self.unit_of.items()}
        makers = {cut.float_value: place for place, cut in enumerate(self.units.cuts)}
        given = {self.unit_of[name] for name in nodes}
        found: set[str] = set()
        for place, cut in enumerate(self.units.cuts):
            read = {makers[value] for value in cut.float_inputs if value in makers}
            if place in given:
                found |= {names[other] for other in read if other in names}
            elif read & given and place in names:
                found.add(names[place])
        return found

    def propose(self, found: Sensitivity, wanted: float, most: int, to: Fallback) -> Proposal:
        """Return the plan with the fewest fallbacks, `most` at most, that regains this share."""
        base = self.write(self.plan)[1]
        total = sum(node.quantized for node in self.plan.nodes.values())

        def make(nodes: tuple[str, ...]) -> Proposal:
            """Write the plan in which these nodes fall back."""
            plan, error = self.plan, base
            if nodes:
                plan, error = self.write(self._fall_back(nodes, to))
            noises, losses = (base.noise, error.noise), (base.loss, error.loss)
            interval = share_interval(base.samples, error.samples)
            return Proposal(plan, nodes, to, total, *noises, wanted, *losses, interval)

        steps = partial(_add_nodes, variants=self, found=found, most=most)
        return improve((), [steps], make, lambda one, other: other.loss < one.loss).current

    def try_nodes(self, sets: list[tuple[str, ...]], to: Fallback) -> list[float]:
        """Return the loss of the outputs where these sets of nodes fall back."""
        if to != "uint16":
            # The noise of 8-bit weights is next to nothing beside that of 4 bits: as if float.
            return [error.loss for error in self.without(sets)]
        return [self.write(self._fall_back(nodes, to))[1].loss for nodes in sets]

    def _fall_back(self, nodes: tuple[str, ...], to: Fallback) -> QuantPlan:
        return fall_back(self.prepared.model, self.plan, nodes, to)

    def _measure(
        self,
        kind: Kind,
        sets: Sequence[tuple[int, ...]],
        report: Callable[[int], None] = lambda done: None,
    ) -> dict[Key, TotalError]:
        return measure_variants(
            self.variants,
            kind,
            sets,
            self.samples,
            memory_budget=self.measuring.memory_budget,
            providers=self.prepared.providers,
            engine=self.measuring.engine,
            on_progress=report,
        )


def _add_nodes(
    trail: Trail[Proposal], *, variants: NodeVariants, found: Sensitivity, most: int
) -> Generator[Attempt[tuple[str, ...]], Trail[Proposal], None]:
    """Let nodes fall back one by one, each time the one that helps most, until enough is regained.

    What is tried as float nodes is what the plan gives, up to how the runtime fuses it.
    """
    start = trail.current  # the plan as it is
    way: list[tuple[float, tuple[str, ...]]] = []
    chosen: tuple[str, ...] = ()
    while len(chosen) < most and (names := _next_nodes(variants, found, chosen, start.to)):
        losses = variants.try_nodes([(*chosen, name) for name in names], start.to)
        loss, name = min(zip(losses, names, strict=True), key=lambda pair: pair[0])
        chosen = (*chosen, name)
        if loss > (1 - start.wanted) * start.loss_before:
            way.append((loss, chosen))
            continue
        trail = yield Attempt(chosen)
        if trail.current.reached:
            return
    # One node more can make it worse: the best part of the way counts, not its end.
    for _, chosen in sorted(way)[:WRITTEN_NODES]:
        yield Attempt(chosen)


def _next_nodes(
    variants: NodeVariants, found: Sensitivity, chosen: tuple[str, ...], to: Fallback
) -> list[str]:
    """Return the most sensitive nodes that are left, and those beside the chosen ones."""
    ranked = [node.name for node in found.ranking if node.name not in chosen]
    if to == "uint16":
        return ranked[:WRITTEN_NODES]
    beside = variants.neighbours(chosen)
    others = [name for name in ranked[NEXT_NODES:] if name in beside]
    return [*ranked[:NEXT_NODES], *others[:NEXT_NODES]]
