"""Tuning from beginning to end: data, plans, their mixtures, the metric, the result."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from bitwright import graph
from bitwright._version import TOOL
from bitwright.assess import Clock, Drop, middle_sized, read_clock, stays_float, time_models
from bitwright.errors import DataError
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.loop import Trail, improve
from bitwright.jobs.improve.metrics import Metric
from bitwright.jobs.improve.mixtures import (
    Cost,
    Deadline,
    Made,
    Mix,
    MixCandidate,
    MixMaker,
    Mixtures,
)
from bitwright.jobs.improve.scorer import Runnable, Scorer
from bitwright.jobs.opening import input_specs
from bitwright.jobs.placing import with_purpose
from bitwright.jobs.timing import yardstick_of
from bitwright.jobs.tuning.plans import Plans
from bitwright.jobs.tuning.points import front_points
from bitwright.jobs.tuning.purposes import PurposeProposals, planned_evaluations
from bitwright.jobs.tuning.request import TuneRequest, TuneSamples, check_request
from bitwright.jobs.tuning.result import Probe, TuneResult
from bitwright.support.wording import show_bytes
from bitwright.targets.host import detect_cpu_class
from bitwright.verification.runtime import note_rounded

__all__ = ["TuneRequest", "tune_model"]

BEST_MODEL, BEST_PLAN = "best.onnx", "best-plan.json"
BEST = "best"
"""Under which the journal has the name of the model on disk."""
TIMED_SAMPLES = 8
"""Number of samples searched for the median-sized one; models are timed on it."""
MIN_TIME_SAVED, MIN_BYTES_SAVED = 0.05, 0.02
"""The share of the whole cost that a model must save to be worth being scored: sizes are exact,
and what a mix of units will take is an estimate."""
_FLOAT_TIME = "time of float"
"""Under which the journal has the milliseconds of the prepared float model."""


def tune_model(request: TuneRequest) -> TuneResult:
    """Look for the cheapest model whose metric falls no further than allowed."""
    check_request(request)
    deadline = Deadline(request.goal.seconds)
    given = graph.load_model(request.source)
    graph.normalize(given, keep_defaults=request.recipe.keep_defaults)
    samples = TuneSamples(request, input_specs(given))
    metric = request.metric(samples.has_labels)
    if metric.guesses and not samples.has_labels:
        raise DataError(
            f"the metric {metric.name!r} needs labels; give labels, or samples with a 'label' "
            "beside the model's inputs, or tune by agreement with float."
        )
    fingerprint = "" if request.work is None else graph.fingerprint(given, weights=True)
    with Journal(request.work, _identity(request, fingerprint, metric, samples)) as journal:
        return _Job(_placed(request), deadline, samples, metric, journal).run()


def _placed(request: TuneRequest) -> TuneRequest:
    """Return the request with its purpose in the recipe, by which plans leave nodes float."""
    recipe, goal = request.recipe, request.goal
    if goal.keep_quantized or not recipe.can_be_placed:
        return request
    cpu = (recipe.place.cpu or detect_cpu_class()) if goal.is_timed else None
    return replace(request, recipe=with_purpose(recipe, goal.purpose, cpu))


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
        deadline: Deadline,
        samples: TuneSamples,
        metric: Metric,
        journal: Journal,
    ) -> None:
        self._request, self._deadline = request, deadline
        self._samples, self._metric, self._journal = samples, metric, journal
        self._written: str | None = None
        self._probes: list[Probe] = []
        self._plans = Plans(request, samples, journal)
        self._scorer = self._score_on(samples.parts.evaluation, "eval")

    def run(self) -> TuneResult:
        """Search, and measure the result on samples that the search has not seen."""
        request, goal, scorer = self._request, self._request.goal, self._scorer
        score, samples = scorer.float_score(whole=goal.relative)
        planned = planned_evaluations(self._plans, goal)
        seconds = scorer.sample_seconds * len(scorer)
        about = f", {seconds:.0f} s each at most" if scorer.samples.seconds is not None else ""
        scope = f" on the first {samples} samples" if samples < len(scorer) else ""
        request.report(
            f"float: {self._metric.name} {score:.4g}{scope}; at most {planned} evaluations of "
            f"{len(scorer)} samples{about}"
        )
        self._maker = MixMaker(
            scorer,
            self._journal,
            goal.limit(score),
            goal.purpose,
            self._price,
            MIN_TIME_SAVED if goal.is_timed else MIN_BYTES_SAVED,
            self._deadline,
            request.report,
            takes_slow=goal.keep_quantized,
        )
        purpose = PurposeProposals(self._maker, self._plans, goal, self._probe)
        maker = self._maker

        def keep_new(best: MixCandidate) -> None:
            if best.is_new:  # else the end will
                self._keep_best(best.mix, maker.model(best.mix))

        trail = improve(
            None, purpose.proposals, maker.make, maker.is_better, maker.budget, keep_new
        )
        return self._finish(trail, planned)

    def _score_on(self, order: Sequence[int], part: str) -> Scorer:
        return Scorer(
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
            engine=self._request.calibration.engine,
        )

    def _price(self, made: Made) -> Cost:
        """Return what a model costs by itself, a time beside that of float."""
        if not self._request.goal.is_timed:
            return Cost(float(graph.written_size(made.model)))
        if stays_float(made.plan):  # it is the float model
            seconds = self._float_cost() / 1000
            return Cost.of_time(read_clock([(seconds, seconds)], apart=0.0))
        clock = self._time(made.model)
        # The float model has one time for all models, which are told by what they are beside it.
        found = self._journal.get(_FLOAT_TIME)
        if found is None:
            found = self._journal[_FLOAT_TIME] = clock.float_ms
        return Cost.of_time(replace(clock, float_ms=found, quantized_ms=clock.ratio * found))

    def _time(self, model: ir.Model | None) -> Clock:
        """Time a model in turns with the prepared float model, or that with itself."""
        count = min(len(self._scorer), TIMED_SAMPLES)
        sample = middle_sized([self._scorer.samples.feeds(index) for index in range(count)])
        yardstick = yardstick_of(self._plans.prepared)
        models = [yardstick, yardstick if model is None else model]
        found = time_models(
            models, [sample, sample], providers=self._request.providers, however_long=True
        )
        assert found is not None  # however long it takes
        return found[0]

    def _probe(self, mixtures: Mixtures) -> None:
        """Score weights alone and activations alone: what cannot be met is told early.

        They choose nothing, so that the samples of the first look will do.
        """
        limit = self._maker.limit
        for name, open_probe in mixtures.probes().items():
            if not self._deadline.has(self._scorer.sample_seconds * len(self._scorer) / 4):
                return
            full_name = f"{mixtures.name}-{name}"
            drop = self._scorer.score(full_name, open_probe, limit, first_look=True).drop
            found = Probe(name, drop, drop.mean <= limit)
            self._probes.append(found)
            side = "weights" if name.startswith("W") else "activations"
            verdict = "within" if found.passes else "beyond"
            self._request.report(
                f"{name}: {side} alone lose {found.measured.describe()}, {verdict} the allowed drop"
            )

    # The best model so far --------------------------------------------------------------------

    def _keep_best(self, mix: Mix, made: Made) -> None:
        """Write the best model so far: whatever happens next, it is there."""
        journal, request = self._journal, self._request
        for path in (journal.path(BEST_MODEL), request.output):
            if path is not None and self._written != mix.name:
                graph.save_model(made.model, path, external_data=request.external_data)
        if (plan := journal.path(BEST_PLAN)) is not None:
            made.plan.save(plan)
        journal[BEST] = self._written = mix.name

    # The result -------------------------------------------------------------------------------

    def _finish(self, trail: Trail[MixCandidate], planned: int) -> TuneResult:
        request, goal, maker = self._request, self._request.goal, self._maker
        best = trail.current  # the first model is scored in any case
        maker.cost(best.mix)
        made = maker.model(best.mix)
        if request.recipe.mode != "weight-only":  # what the runtime changes, as for any other model
            plan = note_rounded(made.plan, made.model, request.providers)
            made = replace(made, plan=plan)
        self._keep_best(best.mix, made)
        is_float = stays_float(made.plan)
        final = self._final(best.mix, made, is_float=is_float)
        notes = tuple(self._notes(best, final, is_float=is_float))
        too_dear = self._is_too_large(best) or maker.is_too_slow(best.mix)
        unmet = self._contradicts(final) or is_float or too_dear
        points = front_points(maker, self._float_cost())
        chosen = next(n for n, (mix, _) in enumerate(points) if mix.name == best.mix.name)
        last = trail.last.mix.mixtures
        return TuneResult(
            met=best.passes and not unmet,
            is_float=is_float,
            metric=self._metric.name,
            max_drop=maker.limit,
            max_size=goal.max_size,
            purpose=goal.purpose,
            float_score=self._metric.sign * self._scorer.float_score()[0],
            float_cost=self._float_cost(),
            points=tuple(point for _, point in points),
            chosen=chosen,
            final=final,
            probes=tuple(self._probes),
            loss_units=last.table.shares(5) if last.is_measured else (),
            evaluations=len(self._scorer.models),
            planned_evaluations=planned,
            seconds=self._deadline.elapsed,
            stopped=self._deadline.stopped,
            notes=notes,
            model=made.model,
            plan=made.plan,
            command=self._command(),
            source=request.source,
            path=request.output,
        )

    def _contradicts(self, final: Drop | None) -> bool:
        """Whether samples that the search has not seen say that the drop is beyond the limit."""
        limit = self._maker.limit
        return final is not None and final.mean > limit and final.is_sure(limit)

    def _is_too_large(self, best: MixCandidate) -> bool:
        most = self._request.goal.max_size
        return most is not None and self._maker.cost(best.mix).value > most

    def _notes(self, best: MixCandidate, final: Drop | None, *, is_float: bool) -> Iterator[str]:
        """Yield what to know about the result."""
        goal, limit, drop = self._request.goal, self._maker.limit, best.score.drop
        if self._is_too_large(best):
            yield (
                f"no model of this recipe is as small as {show_bytes(goal.max_size or 0)}: this is "
                "the smallest; take fewer bits"
            )
        if is_float:
            yield (
                "nothing is quantized: no model within the allowed drop is cheaper than the float "
                "one, which was written"
                if goal.max_size is None
                else "nothing is quantized: the float model is small enough as it is"
            )
        elif best.passes and self._contradicts(final):
            yield (
                "samples that the search never saw contradict it: the drop is beyond what is "
                "allowed; allow less in the search, or give more samples to evaluate with"
            )
        if not drop.is_sure(limit):
            more = drop.needed_samples(limit)
            needed = "" if more is None else f"; about {more:,} samples would tell"
            yield (
                f"whether the drop is within {limit:.3g} cannot be told for sure with "
                f"{drop.samples} samples: its mean decided{needed}"
            )
        cost = self._maker.cost(best.mix)
        if not is_float and cost.clock is not None and not cost.clock.is_faster:
            yield f"the model is {cost.clock.in_words()}: quantizing it saves no time here"
        elif not is_float and cost.clock is None and cost.value >= self._float_cost():
            yield "the float model is as small: quantizing it saves nothing here"

    def _final(self, mix: Mix, made: Made, *, is_float: bool) -> Drop | None:
        """Measure the best model on samples that the search has not seen, and only it.

        Of these, too, it takes no more than tell on which side of the limit the model is.
        """
        if self._request.eval_data is None and self._metric.scope == "model":
            return None  # the function has samples of its own
        scorer = self._score_on(self._samples.parts.final, "final")
        if is_float:
            return scorer.score_of_float().drop
        return scorer.score(mix.name, lambda: made, self._maker.limit, in_order=True).drop

    def _float_cost(self) -> float:
        """Return what the float model costs, measured as the others are."""
        if not self._request.goal.is_timed:
            return float(self._plans.prepared.float_size)
        if self._journal.get(_FLOAT_TIME) is None:
            self._journal[_FLOAT_TIME] = self._time(None).float_ms
        return float(self._journal.get(_FLOAT_TIME))

    def _command(self) -> str | None:
        """Return the command that makes the same model again, where its plan is kept."""
        plan = self._journal.path(BEST_PLAN)
        if plan is None:
            return None
        source = self._request.source
        model = source if isinstance(source, str | Path) else "model.onnx"
        output = self._request.output or "tuned.onnx"
        return shlex.join(["bitwright", "apply", str(plan), str(model), "-o", str(output)])
