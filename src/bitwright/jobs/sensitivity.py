"""Find which nodes of a plan hurt: the plan written, its units taken apart, and tried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import onnx_ir as ir

from bitwright.assess import (
    NodeSensitivity,
    Sensitivity,
    compare_models,
    compare_outputs,
    measure_variants,
    name_unit,
    open_units,
)
from bitwright.assess.comparison.units import Units
from bitwright.assess.sensitivity.variants import Key, Kind
from bitwright.data import ImagePreprocess, Sample
from bitwright.decide.validation import check_plan
from bitwright.errors import DataError
from bitwright.graph import open_session, run_session
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.static import Calibration, Job
from bitwright.jobs.weight_only import WeightJob
from bitwright.plan import QuantPlan
from bitwright.support.progress import Progress, show_progress

__all__ = ["SAMPLES", "sense"]

SAMPLES = 8
"""How many samples are measured on, unless told otherwise."""


def sense(
    float_model: Any,
    plan: QuantPlan,
    *,
    data: Any = None,
    limit: int,
    preprocess: ImagePreprocess | str | None = None,
    samples: Sequence[Sample] | None = None,
    candidates: int | None,
    providers: Sequence[str] | None,
    memory_budget: int,
    progress: Progress,
) -> Sensitivity:
    """Measure each quantized node of a plan; with `candidates` only those that lose most alone.

    `samples` are in the form that the quantized model takes, in place of `data`.
    """
    if data is None and samples is None:
        raise DataError(
            "sensitivity is measured on samples; give data (arrays, files, a folder of images, a "
            "data reader), or ask for random data to try things out."
        )
    if limit < 1:
        raise DataError(f"at least one sample is needed, not {limit}.")
    writer = _Writer(float_model, plan, providers)
    check_plan(writer.job.model, plan, fingerprint=writer.job.fingerprint)
    if samples is None:
        given = writer.read(Calibration(data=data, preprocess=preprocess), limit)
    else:
        writer.keep(Calibration(data=samples))
        given = list(samples[:limit])
    quantized = writer.write(plan)
    # Its channels are evened out as those of the quantized model are: units can change places.
    units = open_units(writer.job.model, quantized)
    named = {
        index: name_unit(cut)[0]
        for index, cut in enumerate(units.cuts)
        if cut.is_quantized and cut.main is not None
    }
    chosen = {
        name: index
        for index, name in named.items()
        if name in plan.nodes and plan.nodes[name].action == "quantize"
    }
    if candidates is not None and candidates < len(chosen):
        found = compare_models(
            writer.job.model,
            quantized,
            given,
            memory_budget=memory_budget,
            providers=providers,
        )
        loud = {node.name for node in found.worst(candidates)}
        chosen = {name: index for name, index in chosen.items() if name in loud}
    trial = _Trial(writer, plan, quantized, given, units, chosen, memory_budget)
    with show_progress(progress, "Measuring nodes", 2 * len(chosen)) as report:
        alone = trial.run("alone", report)
        without = trial.run("without", lambda done: report(len(chosen) + done))
    total = without["quantized"]
    nodes = [
        NodeSensitivity(name, plan.nodes[name].op, alone[index,], without[index,], total)
        for name, index in chosen.items()
    ]
    return Sensitivity(plan, total, nodes, len(given), trial)


class _Writer:
    """Writes plans for one float model."""

    def __init__(self, source: Any, plan: QuantPlan, providers: Sequence[str] | None) -> None:
        self._source = source
        self.providers = providers
        self.job = self._open(plan)
        self.calibration = Calibration()
        """What weights are rounded by, in recipes that ask for it."""

    def read(self, reading: Calibration, limit: int) -> list[Sample]:
        """Return the first samples of the data; all of it is kept where rounding needs it."""
        return list(islice(self.job.open_data(self.keep(reading)), limit))

    def keep(self, reading: Calibration) -> Calibration:
        """Keep the data if weights are rounded by it, and return it to be read."""
        recipe = self.job.recipe
        if recipe.mode != "weight-only" or not recipe.weights.needs_data:
            return reading
        self.calibration = replace(self.job.keep_data(reading), holdout=False)
        return self.calibration

    def write(self, plan: QuantPlan) -> ir.Model:
        """Return the quantized model."""
        if plan.recipe.mode == "weight-only":
            return WeightJob(self.job, self.calibration).write(plan).model
        return self.job.write(plan).model

    def fit(self, plan: QuantPlan) -> QuantPlan:
        """Return a changed plan as it can be applied."""
        if plan.recipe != self.job.recipe:
            # Other types may need another opset, and then the prepared model is another.
            self.job = self._open(plan)
        if plan.fingerprint != self.job.fingerprint:
            plan = msgspec.structs.replace(plan, fingerprint=self.job.fingerprint)
        check_plan(self.job.model, plan, fingerprint=plan.fingerprint)
        return plan

    def _open(self, plan: QuantPlan) -> Job:
        job = open_for_plan(self._source, plan, self.providers)
        job.smooth(plan.smoothing)
        return job


class _Trial:
    """Tries out which nodes to put back, always on the same samples."""

    def __init__(
        self,
        writer: _Writer,
        plan: QuantPlan,
        quantized: ir.Model,
        samples: list[Sample],
        units: Units,
        places: dict[str, int],
        memory_budget: int,
    ) -> None:
        self._writer = writer
        self._plan = plan
        self._quantized = quantized
        self._samples = samples
        self._units = units
        self._places = places
        self._memory_budget = memory_budget
        # What is lost by imitating hardware comes back with no node: it is no part of the loss.
        self._float = open_session(writer.job.model, providers=writer.providers)

    def run(self, kind: Kind, report: Callable[[int], None]) -> dict[Key, float]:
        """Measure every node by itself."""
        return self._measure(kind, [(place,) for place in self._places.values()], report)

    def without(self, sets: Sequence[tuple[str, ...]]) -> list[float]:
        """Return the error of the outputs for each set of nodes that is float."""
        places = [tuple(sorted(self._places[name] for name in names)) for names in sets]
        found = self._measure("without", places)
        return [found[place] for place in places]

    def write(self, plan: QuantPlan) -> tuple[QuantPlan, float]:
        """Return the plan as it can be applied, and the error of its outputs."""
        if plan != self._plan:
            plan = self._writer.fit(plan)
            quantized = self._writer.write(plan)
        else:
            quantized = self._quantized
        session = open_session(quantized, providers=self._writer.providers)
        outputs = compare_outputs(
            lambda feeds: run_session(self._float, feeds),
            lambda feeds: run_session(session, feeds),
            self._samples,
        )
        shares = [10 ** (-output.sqnr / 10) for output in outputs]
        return plan, sum(shares) / len(shares) if shares else 0.0

    def neighbours(self, nodes: Iterable[str]) -> set[str]:
        """Return the nodes that read what these write, or write what these read."""
        names = {place: name for name, place in self._places.items()}
        makers = {cut.plain: place for place, cut in enumerate(self._units.cuts)}
        given = {self._places[name] for name in nodes}
        found: set[str] = set()
        for place, cut in enumerate(self._units.cuts):
            read = {makers[value] for value in cut.plain_inputs if value in makers}
            if place in given:
                found |= {names[other] for other in read if other in names}
            elif read & given and place in names:
                found.add(names[place])
        return found

    def _measure(
        self,
        kind: Kind,
        sets: Sequence[tuple[int, ...]],
        report: Callable[[int], None] = lambda done: None,
    ) -> dict[Key, float]:
        return measure_variants(
            self._units,
            kind,
            sets,
            self._samples,
            memory_budget=self._memory_budget,
            providers=self._writer.providers,
            report=report,
        )
