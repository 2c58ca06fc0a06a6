"""Tuning from beginning to end: data, cascade, errors, costs, front, metric, result."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bitwright import graph
from bitwright._version import TOOL
from bitwright.assess.judge.sequential import Drop
from bitwright.errors import DataError
from bitwright.jobs.opening import input_specs
from bitwright.jobs.tuning.candidates import Made
from bitwright.jobs.tuning.evaluation import Evaluator, Runnable
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import LatencyMeter, ModelTimes, middle_sized
from bitwright.jobs.tuning.metrics import Metric
from bitwright.jobs.tuning.plans import Plans
from bitwright.jobs.tuning.request import TuneRequest, check_request
from bitwright.jobs.tuning.result import MetricDrop, TuneResult
from bitwright.jobs.tuning.samples import TuneSamples
from bitwright.jobs.tuning.search import BEST, Clock, Found, Search
from bitwright.jobs.tuning.strategy import Strategy
from bitwright.plan import QuantPlan
from bitwright.support.wording import show_bytes
from bitwright.verification.rounded import note_rounded

__all__ = ["TuneRequest", "tune_model"]

BEST_MODEL, BEST_PLAN = "best.onnx", "best-plan.json"
NOTED = "noted"
METER_SAMPLES = 8
"""Of so many samples, models are timed on the one of middle size."""


def tune_model(request: TuneRequest) -> TuneResult:
    """Look for the cheapest model whose metric falls no further than allowed."""
    check_request(request)
    clock = Clock(request.goal.seconds)
    given = graph.load_model(request.source)
    graph.normalize(given, keep_defaults=request.recipe.keep_defaults)
    samples = TuneSamples(request, input_specs(given))
    metric = request.metric(samples.has_labels)
    if metric.needs_label and not samples.has_labels:
        raise DataError(
            f"the metric {metric.name!r} needs labels; give labels, or samples with a 'label' "
            "beside the model's inputs, or tune by agreement with float."
        )
    fingerprint = "" if request.work is None else graph.fingerprint(given, weights=True)
    with Journal(request.work, _identity(request, fingerprint, metric, samples)) as journal:
        return _Job(request, clock, samples, metric, journal).run()


def _identity(
    request: TuneRequest, fingerprint: str, metric: Metric, samples: TuneSamples
) -> dict[str, str]:
    if request.work is None:
        return {}
    recipe = hashlib.sha256(request.recipe.to_json(indent=0).encode()).hexdigest()
    return {
        "version": TOOL,
        "model": fingerprint,
        "recipe": f"{recipe} {request.effort}",
        "data": samples.fingerprint,
        "metric": metric.identity,
    }


class _Job:
    """One search with all that it needs."""

    def __init__(
        self,
        request: TuneRequest,
        clock: Clock,
        samples: TuneSamples,
        metric: Metric,
        journal: Journal,
    ) -> None:
        self._request, self._clock = request, clock
        self._samples, self._metric, self._journal = samples, metric, journal
        self._notes: list[str] = []
        self._written: str | None = None
        self._plans = Plans(request, samples, journal)
        self._evaluator = self._evaluate_on(samples.parts.evaluation, "eval")
        self._times = ModelTimes(journal, self._open_meter)

    def run(self) -> TuneResult:
        """Search, and measure the result on samples that the search has not seen."""
        request, evaluator = self._request, self._evaluator
        score, samples = evaluator.float_score(whole=request.goal.relative)
        limit = request.goal.limit(score)
        strategy = Strategy(
            request,
            self._plans,
            evaluator,
            self._times,
            self._journal,
            self._clock,
            self._keep_best,
        )
        planned = strategy.planned_evaluations
        per_sample = evaluator.sample_seconds
        about = "" if per_sample is None else f", {per_sample * len(evaluator):.0f} s each at most"
        scope = f" on the first {samples} samples" if samples < len(evaluator) else ""
        request.report(
            f"float: {self._metric.name} {score:.4g}{scope}; at most {planned} evaluations of "
            f"{len(evaluator)} samples{about}"
        )
        search = strategy.run(limit)
        return self._finish(search, limit, planned)

    def _evaluate_on(self, order: Sequence[int], part: str) -> Evaluator:
        return Evaluator(
            self._metric,
            lambda: self._samples.samples,
            order,
            self._journal,
            lambda: Runnable(
                self._plans.prepared.reference_session,
                self._plans.prepared.reference,
                self._request.providers,
            ),
            part=part,
            engine=self._request.engine,
        )

    # The best model so far --------------------------------------------------------------------

    def _keep_best(self, found: Found, made: Made) -> None:
        """Write the best model so far: whatever happens next, it is there."""
        if self._written == found.name:
            return
        self._written = found.name
        model, plan = self._journal.path(BEST_MODEL), self._journal.path(BEST_PLAN)
        self._journal[BEST] = None  # until both files are of the same model
        for path in (model, self._request.output):
            if path is not None:
                graph.save_model(made.model, path, external_data=self._request.external_data)
        if plan is not None:
            made.plan.save(plan)
        self._journal[BEST] = found.name

    def _with_notes(self, best: Found, made: Made) -> Made:
        """Note what the runtime changes, as for any model that is handed out."""
        if self._request.recipe.mode == "weight-only" or self._journal.get(NOTED) == best.name:
            return made
        plan = note_rounded(made.plan, made.model, self._request.providers)
        if (path := self._journal.path(BEST_PLAN)) is not None:
            plan.save(path)
            self._journal[NOTED] = best.name
        return replace(made, plan=plan)

    def _reopen(self, best: Found) -> Made | None:
        """Return the model that an earlier run wrote last, if it is the one that is wanted."""
        model, plan = self._journal.path(BEST_MODEL), self._journal.path(BEST_PLAN)
        if self._journal.get(BEST) != best.name or model is None or plan is None:
            return None
        if not model.exists() or not plan.exists():
            return None
        return Made(graph.load_model(model), QuantPlan.load(plan), self._request.providers)

    # The result -------------------------------------------------------------------------------

    def _finish(self, search: Search, limit: float, planned: int) -> TuneResult:
        request, best = self._request, search.best
        assert best is not None  # the first plan is evaluated in any case
        if best.measured_cost is None:
            search.measure_cost(best)
        made = self._reopen(best) or search.make(best)
        self._keep_best(best, made)
        made = self._with_notes(best, made)
        is_float = not any(node.quantized for node in made.plan.nodes.values())
        final = self._final(best, made, limit, is_float=is_float)
        contradicted = final is not None and final.mean > limit and final.is_sure(limit)
        max_size = request.goal.max_size
        too_large = max_size is not None and (best.measured_cost or 0) > max_size
        met = best.passes and not (contradicted or is_float or too_large)
        if too_large:
            self._notes.append(
                f"no model of this recipe is as small as {show_bytes(max_size or 0)}: this is the "
                "smallest; take fewer bits"
            )
        if is_float:
            self._notes.append(
                "nothing is quantized: no model within the allowed drop is cheaper than the float "
                "one, which was written"
                if max_size is None
                else "nothing is quantized: the float model is small enough as it is"
            )
        elif best.passes and contradicted:
            self._notes.append(
                "samples that the search never saw contradict it: the drop is beyond what is "
                "allowed; allow less in the search, or give more samples to evaluate with"
            )
        tested = best.tested
        if tested is not None and not tested.drop.is_sure(limit):
            more = tested.drop.needed_samples(limit)
            needed = "" if more is None else f"; about {more:,} samples would tell"
            self._notes.append(
                f"whether the drop is within {limit:.3g} cannot be told for sure with "
                f"{tested.drop.samples} samples: its mean decided{needed}"
            )
        float_cost = self._float_cost()
        if not is_float and best.measured_cost is not None and best.measured_cost >= float_cost:
            what = "fast" if request.goal.purpose == "speed" else "small"
            self._notes.append(f"the float model is as {what}: quantizing it saves nothing here")
        points = search.front_points()
        chosen = next(index for index, (found, _) in enumerate(points) if found is best)
        return TuneResult(
            met=met,
            is_float=is_float,
            metric=self._metric.name,
            max_drop=limit,
            max_size=max_size,
            purpose=request.goal.purpose,
            float_score=self._metric.sign * self._evaluator.float_score()[0],
            float_cost=float_cost,
            float_spread=self._times.of_float()[1:] if request.goal.purpose == "speed" else None,
            points=tuple(point for _, point in points),
            chosen=chosen,
            final=None if final is None else MetricDrop.of(final),
            probes=tuple(search.probes),
            loss_units=search.loss_units,
            evaluations=len(self._evaluator.models),
            planned_evaluations=planned,
            seconds=self._clock.elapsed,
            stopped=self._clock.stopped,
            notes=tuple(self._notes),
            model=made.model,
            plan=made.plan,
            command=self._command(),
            source=request.source,
            path=request.output,
        )

    def _final(self, best: Found, made: Made, limit: float, *, is_float: bool) -> Drop | None:
        """Measure the best model on samples that the search has not seen, and only it.

        Of these, too, it takes no more than tell on which side of the limit the model is.
        """
        if self._request.eval_data is None and self._metric.scope == "model":
            return None  # the function has samples of its own
        evaluator = self._evaluate_on(self._samples.parts.final, "final")
        if is_float:
            return evaluator.test_float().drop
        if evaluator.sample_seconds is None:
            evaluator.sample_seconds = self._evaluator.sample_seconds
        return evaluator.test(best.name, lambda: made.runnable, limit, in_order=True).drop

    def _open_meter(self) -> LatencyMeter:
        count = min(len(self._evaluator), METER_SAMPLES)
        sample = middle_sized([self._evaluator.feeds(index) for index in range(count)])
        return LatencyMeter(self._plans.prepared.reference, sample, self._request.providers)

    def _float_cost(self) -> float:
        """Return what the float model costs, measured as the others are."""
        if self._request.goal.purpose == "size":
            return float(self._plans.prepared.float_size)
        return self._times.of_float().least

    def _command(self) -> str:
        """Return the command that makes the same model again."""
        plan = self._journal.path(BEST_PLAN) or "plan.json"
        source = self._request.source
        model = source if isinstance(source, str | Path) else "model.onnx"
        output = self._request.output or "tuned.onnx"
        return shlex.join(["bitwright", "apply", str(plan), str(model), "-o", str(output)])
