"""Find which nodes of a plan hurt: the plan written, its units taken apart, and tried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from bitwright.jobs.calibration import Calibration, keep_data, take_samples
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, emit_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.weight_only.job import write_weight_only
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
    prepared = open_for_plan(float_model, plan, providers)
    check_plan(prepared.model, plan, fingerprint=prepared.fingerprint)
    calibration = Calibration(data=data if samples is None else samples, preprocess=preprocess)
    if plan.recipe.mode == "weight-only" and plan.recipe.weights.needs_data:
        calibration = replace(keep_data(prepared, calibration), holdout=False)
    given = list(samples or ())[:limit] or take_samples(prepared, calibration, limit)
    quantized = _write(prepared, plan, calibration)
    # Its channels are evened out as those of the quantized model are: units can change places.
    units = open_units(prepared.model, quantized)
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
            prepared.model,
            quantized,
            given,
            memory_budget=memory_budget,
            providers=providers,
        )
        loud = {node.name for node in found.worst(candidates)}
        chosen = {name: index for name, index in chosen.items() if name in loud}
    trial = _Trial(prepared, calibration, plan, quantized, given, units, chosen, memory_budget)
    with show_progress(progress, "Measuring nodes", 2 * len(chosen)) as report:
        alone = trial.run("alone", report)
        without = trial.run("without", lambda done: report(len(chosen) + done))
    total = without["quantized"]
    nodes = [
        NodeSensitivity(name, plan.nodes[name].op, alone[index,], without[index,], total)
        for name, index in chosen.items()
    ]
    return Sensitivity(plan, total, nodes, len(given), trial)


def _write(prepared: Prepared, plan: QuantPlan, calibration: Calibration) -> ir.Model:
    """Return the quantized model of a plan; weights are rounded by the data where it asks so."""
    if plan.recipe.mode == "weight-only":
        if not plan.recipe.weights.needs_data:
            calibration = Calibration()
        return write_weight_only(prepared, plan, calibration).model
    return emit_model(prepared, Planned(plan)).model


def _fit(prepared: Prepared, plan: QuantPlan) -> tuple[Prepared, QuantPlan]:
    """Return a changed plan as it can be applied, and the model that it is for."""
    if plan.recipe != prepared.recipe:
        # Other types may need another opset, and then the prepared model is another.
        prepared = open_for_plan(prepared.source, plan, prepared.providers)
    if plan.fingerprint != prepared.fingerprint:
        plan = msgspec.structs.replace(plan, fingerprint=prepared.fingerprint)
    check_plan(prepared.model, plan, fingerprint=plan.fingerprint)
    return prepared, plan


class _Trial:
    """Tries out which nodes to put back, always on the same samples."""

    def __init__(
        self,
        prepared: Prepared,
        calibration: Calibration,
        plan: QuantPlan,
        quantized: ir.Model,
        samples: list[Sample],
        units: Units,
        places: dict[str, int],
        memory_budget: int,
    ) -> None:
        self._prepared = prepared
        self._calibration = calibration
        self._plan = plan
        self._quantized = quantized
        self._samples = samples
        self._units = units
        self._places = places
        self._memory_budget = memory_budget
        # What is lost by simulating hardware comes back with no node: it is no part of the loss.
        self._float = open_session(prepared.model, providers=prepared.providers)

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
            prepared, plan = _fit(self._prepared, plan)
            quantized = _write(prepared, plan, self._calibration)
        else:
            quantized = self._quantized
        session = open_session(quantized, providers=self._prepared.providers)
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
        makers = {cut.float_value: place for place, cut in enumerate(self._units.cuts)}
        given = {self._places[name] for name in nodes}
        found: set[str] = set()
        for place, cut in enumerate(self._units.cuts):
            read = {makers[value] for value in cut.float_inputs if value in makers}
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
            providers=self._prepared.providers,
            on_progress=report,
        )
