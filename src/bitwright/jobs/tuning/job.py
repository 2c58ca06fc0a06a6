"""Tuning from beginning to end: data, cascade, errors, costs, front, metric, result."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from bitwright import graph
from bitwright._version import TOOL
from bitwright.assess.judge.sequential import Drop
from bitwright.assess.optimized.rounded import note_rounded
from bitwright.data import InputSpec, Sample, Transform
from bitwright.data.labelled import LabelledSamples, fingerprint_data, open_labelled
from bitwright.errors import DataError, RecipeError, TargetError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.effort import Effort, check_effort, plan_with_effort, plans_by_ranges
from bitwright.jobs.effort.trials import preparation_key
from bitwright.jobs.modes import mode_of
from bitwright.jobs.opening import Prepared, input_specs, open_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.candidates import Candidates, Made, StaticCandidates
from bitwright.jobs.tuning.evaluation import Evaluator, Runnable
from bitwright.jobs.tuning.goal import Goal
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import LatencyMeter, Timing, middle_sized
from bitwright.jobs.tuning.metrics import Metric
from bitwright.jobs.tuning.result import MetricDrop, TuneResult
from bitwright.jobs.tuning.search import Clock, Found, Search, planned_evaluations
from bitwright.jobs.tuning.splits import Parts, split_all, split_evaluation
from bitwright.jobs.tuning.trimming import trim_ranges
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.engines import LOCAL, Engine
from bitwright.support.wording import show_bytes

__all__ = ["TuneRequest", "tune_model"]

BEST, BEST_MODEL, BEST_PLAN = "best", "best.onnx", "best-plan.json"
NOTED, RANGES = "noted", "ranges"
MIN_CALIBRATION = 8
MIN_KEPT = 0.95
"""The share of what int8 saves that a model must keep for the search to end without more effort."""

MIN_MENDED = 0.02
"""The share of a plan's error that must be within the limit for more effort to be of use: it lowers
errors to a half or a quarter, not to a fiftieth."""

TRIMMED: Literal["trimmed"] = "trimmed"
Stage = Effort | Literal["trimmed"]
"""What the plan of a stage is made by: an effort, or smaller ranges of the plan before it."""


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What is to be tuned, by which samples and metric, and where the result goes."""

    source: Any
    output: Path | None
    recipe: Recipe
    target: str | None = None
    data: Any
    eval_data: Any
    labels: Any
    metric: Callable[[bool], Metric]
    """Gives the metric, once it is known whether there are labels."""
    goal: Goal
    effort: Effort | None = None
    limit: int | None = None
    eval_limit: int | None = None
    transform: Transform = None
    work: Path | None = None
    memory_budget: int = 512 << 20
    engine: Engine = LOCAL
    providers: Sequence[str] | None = None
    external_data: bool | None = None
    report: Callable[[str], None] = field(default=lambda line: None)


def tune_model(request: TuneRequest) -> TuneResult:
    """Look for the cheapest model whose metric falls no further than allowed."""
    _check(request)
    clock = Clock(request.goal.seconds)
    given = graph.load_model(request.source)
    graph.normalize(given, keep_defaults=request.recipe.keep_defaults)
    samples = _Data(request, input_specs(given))
    metric = request.metric(samples.has_labels)
    if metric.needs_label and not samples.has_labels:
        raise DataError(
            f"the metric {metric.name!r} needs labels; give labels, or samples with a 'label' "
            "beside the model's inputs, or tune by agreement with float."
        )
    fingerprint = "" if request.work is None else graph.fingerprint(given, weights=True)
    with Journal(request.work, _identity(request, fingerprint, metric, samples)) as journal:
        return _Job(request, clock, samples, metric, journal).run()


def _check(request: TuneRequest) -> None:
    recipe = request.recipe
    if recipe.mode in ("dynamic", "cast"):
        what = "dynamic" if recipe.mode == "dynamic" else "without quantizers"
        raise RecipeError(
            f"tuning is for recipes that calibrate activations or store weights in blocks, and "
            f"{recipe.name!r} is {what}; take a static one, such as int8."
        )
    if recipe.fine_tune is not None:
        raise RecipeError(
            f"recipe {recipe.name!r} fine-tunes, and tuning makes many models of one plan; leave "
            "fine_tune out."
        )
    if recipe.rewrite.channels_last:
        raise RecipeError(
            "tuning feeds models as they are given, and rewrite.channels_last changes their "
            "inputs; leave it out, and apply the plan that was found with it."
        )
    if recipe.mode == "weight-only" and request.goal.purpose == "speed":
        raise RecipeError(
            f"recipe {recipe.name!r} stores weights in blocks, and a token takes as long as "
            "reading them: tune it for size."
        )
    if request.effort is not None:
        check_effort(request.effort, recipe, Calibration(request.data))
    if request.target not in (None, "cpu") and request.goal.purpose == "speed":
        raise TargetError(
            f"speed is measured with ONNX Runtime on this machine, which says nothing of "
            f"{request.target}; tune for size, or for the target cpu."
        )
    if request.data is None:
        raise DataError(
            "tuning calibrates and needs data; give data (arrays, files, a folder of images, a "
            "data reader)."
        )


class _Data:
    """The samples of a request, read when they are first needed."""

    def __init__(self, request: TuneRequest, specs: Sequence[InputSpec]) -> None:
        self._request, self._specs = request, specs
        self.is_shared = request.eval_data is None
        """Whether the same data serves to calibrate and to evaluate."""

    @cached_property
    def samples(self) -> LabelledSamples:
        """The samples to evaluate with; where data is shared, all of them."""
        request = self._request
        return open_labelled(
            request.data if self.is_shared else request.eval_data,
            self._specs,
            labels=request.labels,
            limit=request.limit if self.is_shared else request.eval_limit,
            transform=request.transform,
            memory_budget=request.memory_budget,
        )

    @property
    def has_labels(self) -> bool:
        """Whether the samples come with anything beside the model's inputs."""
        return self._request.labels is not None or bool(self.samples.extra)

    def parts(self) -> Parts:
        """Return which samples are for what."""
        count = len(self.samples)
        return split_all(count) if self.is_shared else split_evaluation(count)

    def calibration(self, parts: Parts) -> Calibration:
        """Return the data to calibrate with."""
        request = self._request
        data, limit, transform = request.data, request.limit, request.transform
        if self.is_shared:
            data = [self.samples.feeds(index) for index in parts.calibration]
            limit, transform = None, None
        return Calibration(
            data,
            limit,
            transform,
            holdout=False,
            memory_budget=request.memory_budget,
            engine=request.engine,
            progress=False,
        )

    @cached_property
    def fingerprint(self) -> str:
        """What tells the data apart from other data."""
        request = self._request
        known = [fingerprint_data(x) for x in (request.data, request.eval_data, request.labels)]
        if None in known:  # a stream: what it gave is what it was
            known = [fingerprint_data(list(self.samples)) or ""]
        text = f"{known} {request.limit} {request.eval_limit} {request.transform}"
        return hashlib.sha256(text.encode()).hexdigest()


def _identity(
    request: TuneRequest, fingerprint: str, metric: Metric, samples: _Data
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


def _name_of(plan: QuantPlan) -> str:
    """Return what the figures of a plan with another range method are kept under."""
    return f"{RANGES}-{plan.recipe.ranges.__struct_config__.tag}"


def _with_errors(candidates: Candidates) -> None:
    """Let units be chosen by their errors, too."""
    if isinstance(candidates, StaticCandidates):
        candidates.by_cost = False


def _decide_the_same(one: Candidates, other: Candidates) -> bool:
    """Whether two static plans give the same model: more effort found nothing better to do."""
    if not isinstance(one, StaticCandidates) or not isinstance(other, StaticCandidates):
        return False
    fields = ("tensors", "nodes", "outputs", "smoothing", "bias_shifts", "weight_gains")
    return all(getattr(one.plan, name) == getattr(other.plan, name) for name in fields)


class _Job:
    """One search with all that it needs."""

    def __init__(
        self,
        request: TuneRequest,
        clock: Clock,
        samples: _Data,
        metric: Metric,
        journal: Journal,
    ) -> None:
        self._request, self._clock = request, clock
        self._samples, self._metric, self._journal = samples, metric, journal
        self._parts = samples.parts()
        self._notes: list[str] = []
        self._written: str | None = None
        self._plans_left: Iterator[QuantPlan] | None = None
        self._evaluator = self._evaluate_on(self._parts.evaluation, "eval")

    def run(self) -> TuneResult:
        """Search, and measure the result on samples that the search has not seen."""
        request, evaluator = self._request, self._evaluator
        score, samples = evaluator.float_score(whole=request.goal.relative)
        limit = request.goal.limit(score)
        planned = self._planned
        if request.goal.max_size is not None:
            planned = len(self._stages) + 2 + 1  # one of each plan, two probes, and the end
        per_sample = evaluator.sample_seconds
        about = "" if per_sample is None else f", {per_sample * len(evaluator):.0f} s each at most"
        scope = f" on the first {samples} samples" if samples < len(evaluator) else ""
        request.report(
            f"float: {self._metric.name} {score:.4g}{scope}; at most {planned} evaluations of "
            f"{len(evaluator)} samples{about}"
        )
        if request.goal.max_size is None:
            search = self._search(limit)
        else:
            search = self._search_within(request.goal.max_size, limit)
        return self._finish(search, limit, planned)

    @property
    def _planned(self) -> int:
        """How many models are evaluated at most."""
        stages = self._stages
        if TRIMMED not in stages:
            cheapest = stages[0] == "low" and self._request.goal.purpose == "speed"
            return planned_evaluations(len(stages), tried=cheapest)
        # The first plan, two other range methods, the better of them, and its cheapest mixture.
        return planned_evaluations(len(stages) - 1, tried=5)

    @cached_property
    def _prepared(self) -> Prepared:
        """The float model as evaluations run it."""
        return open_model(self._request.source, self._request.recipe, self._request.providers)

    def _evaluate_on(self, order: Sequence[int], part: str) -> Evaluator:
        return Evaluator(
            self._metric,
            lambda: self._samples.samples,
            order,
            self._journal,
            lambda: Runnable(
                self._prepared.reference_session,
                self._prepared.reference,
                self._request.providers,
            ),
            part=part,
            engine=self._request.engine,
        )

    # The search -------------------------------------------------------------------------------

    def _search(self, limit: float) -> Search:
        """Try plans as they are, then search those of more effort, until one saves enough."""
        first, *others = self._stages
        search, ends = self._try_plans(first, limit)
        if ends or not self._clock.has(0):
            return search
        if not search.base.passes:
            search.probe()
        # Before units fall back to float, their ranges are looked at.
        searched = search.base.passes or TRIMMED not in others
        if searched and self._run(search):
            return search
        for stage in others:
            if not self._clock.has(0):
                return search
            candidates = self._candidates(stage, search.candidates)
            if not _decide_the_same(candidates, search.candidates):
                search.add_errors()
                search = self._start(candidates, limit, search)
                if self._test_base(search) or not self._clock.has(0):
                    return search
            elif searched:
                return search
            searched = True
            if self._run(search):
                return search
        return search

    def _try_plans(self, first: Stage, limit: float) -> tuple[Search, bool]:
        """Evaluate what needs no errors of units; return the last search, and if it ends here.

        That is a plan as it is, and with its units as they are fastest.
        """
        search = self._start(self._candidates(first, None), limit, None)
        slow = self._is_slower_than_float(search)
        ends = self._test_cheapest(search) if slow else self._test_base(search)
        if ends or not self._clock.has(0):
            return search, True
        if search.base.passes or first != "low":
            return search, False
        if TRIMMED in self._stages:
            before, search = search, self._with_better_ranges(search, limit)
            if slow and search is before:
                return search, False
        if self._test_cheapest(search):
            return search, True
        # With more units quantized it will hardly lose less, unless its first samples say so.
        best = search.best
        if best is None or best.tested is None or search.first_drop.mean > best.tested.drop.mean:
            return search, False
        return search, self._test_base(search)

    def _with_better_ranges(self, search: Search, limit: float) -> Search:
        """Return the search of the range method by which the metric falls least at first.

        The error of the outputs does not tell that: of two methods with as much of it, one may
        lose nothing.
        """
        found = [search]
        for plan in self._other_plans():
            candidates = self._static_candidates(_name_of(plan), plan)
            if not _decide_the_same(candidates, search.candidates):
                found.append(self._start(candidates, limit, search))
        best, least = search, math.inf
        for one in found if len(found) > 1 else ():
            if not self._clock.has(self._evaluator.first_look_seconds):
                break
            drop = one.first_drop
            self._request.report(f"{one.candidates.name}: drop {MetricDrop.of(drop).describe()}")
            if drop.mean < least:
                best, least = one, drop.mean
            if drop.samples == len(self._evaluator) and drop.mean <= limit:
                break  # there is no more to know of it
        return best

    def _test_base(self, search: Search) -> bool:
        """Whether a plan as it is is within the limit, and nothing cheaper is to be looked for."""
        if search.best is not None and self._is_slower_than_float(search):
            return False
        return search.test_base().passes and self._pays(search.base)

    def _run(self, search: Search) -> bool:
        """Search the mixtures of a plan; return whether more effort is not worth it."""
        passes = search.base.passes
        if not (passes and self._request.goal.purpose == "speed"):
            _with_errors(search.candidates)
        search.run()
        # More effort is for what this plan must give up: where that is next to nothing, or where
        # next to nothing can be kept of it, it would only take longer.
        keeps = passes or search.kept >= MIN_KEPT
        return keeps or search.least_failed < MIN_MENDED or not self._clock.has(0)

    def _search_within(self, most: int, limit: float) -> Search:
        """Look for what loses least in so many bytes, with more effort if that is too much."""
        before: Search | None = None
        for stage in self._stages:
            candidates = self._candidates(stage, None if before is None else before.candidates)
            if before is not None and _decide_the_same(candidates, before.candidates):
                return before
            _with_errors(candidates)
            search = self._start(candidates, limit, before)
            if search.run_within(most).passes or not self._clock.has(0):
                return search
            if before is None:
                search.probe()
            before = search
        assert before is not None
        return before

    def _start(self, candidates: Candidates, limit: float, before: Search | None) -> Search:
        """Begin the search of a plan."""
        search = Search(
            candidates,
            self._evaluator,
            self._journal,
            self._request.goal,
            limit,
            self._clock,
            self._request.report,
            self._keep_best,
            self._latency,
            self._evaluator.knows_any(limit) if before is None else before.has_known,
            None if before is None else before.best,
        )
        if before is not None:
            tested = (*before.points, *before.aside)
            search.aside = [one for one in tested if one.tested is not None]
            search.probes = before.probes
        return search

    def _is_slower_than_float(self, search: Search) -> bool:
        """Whether the plan as it is gains no speed: then what it loses need not be known."""
        goal, static = self._request.goal, isinstance(search.candidates, StaticCandidates)
        if goal.purpose != "speed" or goal.keep_quantized or not static:
            return False
        search.measure_cost(search.base)
        return not self._pays(search.base)

    def _test_cheapest(self, search: Search) -> bool:
        """Whether the model with all units as they are fastest is within the limit."""
        static = isinstance(search.candidates, StaticCandidates)
        if not static or self._request.goal.purpose != "speed":
            return False
        return search.test_cheapest(self._is_fast_enough).passes

    def _is_fast_enough(self, found: Found) -> bool:
        """Whether a model is not clearly slower than float: than nine in ten runs of it."""
        cost = found.measured_cost
        if self._request.goal.keep_quantized or cost is None:
            return True
        return cost <= self._float_latency().high

    def _pays(self, base: Found) -> bool:
        """Whether a plan that is within the limit needs no search for anything cheaper.

        That is for speed, unless it is slower than float: then some of its units should be float,
        if they may be.
        """
        if self._request.goal.purpose != "speed" or base.measured_cost is None:
            return False
        return self._request.goal.keep_quantized or base.measured_cost < self._float_cost()

    @property
    def _stages(self) -> tuple[Stage, ...]:
        given = self._request.effort
        if self._request.recipe.mode == "weight-only":
            return ("low",)
        if given is not None:
            return (given,)
        if self._request.goal.purpose == "speed":
            return ("low", TRIMMED, "medium")
        # Of a model for size, units go below 8 bits: that takes the best plan in any case.
        return ("standard", "medium")

    def _candidates(self, stage: Stage, before: Candidates | None) -> Candidates:
        request = self._request
        if request.recipe.mode == "weight-only":
            from bitwright.jobs.tuning.weight_only import WeightOnlyCandidates  # for few recipes

            return WeightOnlyCandidates(
                request.source,
                self._plan(stage, before),
                stage,
                self._journal,
                self._choosing,
                self._samples.calibration(self._parts),
                request.providers,
                request.report,
            )
        same = before if stage == TRIMMED and isinstance(before, StaticCandidates) else None
        if same is not None:  # the ranges of those of most error are looked at
            _with_errors(same)
        return self._static_candidates(stage, self._plan(stage, before), same)

    def _static_candidates(
        self, name: str, plan: QuantPlan, before: StaticCandidates | None = None
    ) -> StaticCandidates:
        request = self._request
        return StaticCandidates(
            self._open_for,
            plan,
            name,
            self._journal,
            lambda: self._choosing,
            request.goal.purpose,
            request.providers,
            request.report,
            request.engine,
            before,
            request.goal.keep_quantized,
        )

    def _open_for(self, plan: QuantPlan) -> Prepared:
        """Return the float model that a plan is for; most plans are for the one that is open."""
        opened = self._prepared
        alike = preparation_key(plan.recipe) == preparation_key(opened.recipe)
        if alike and not plan.smoothing and plan.fingerprint == opened.fingerprint:
            return replace(opened, recipe=plan.recipe)
        return open_for_plan(self._request.source, plan, self._request.providers)

    def _first_plan(self) -> QuantPlan:
        """Return the plan of the recipe as it is; others wait for being asked for."""
        self._plans_left = self._plans_by_ranges()
        return next(self._plans_left)

    def _other_plans(self) -> list[QuantPlan]:
        """Return the plans with other range methods than the first plan."""
        known: list[str] | None = self._journal.get(RANGES)
        if known is not None:
            return [QuantPlan.load(path) for path in map(self._plan_path, known) if path]
        if self._plans_left is None:  # the first one was there, from an earlier run
            self._first_plan()
        assert self._plans_left is not None
        plans = list(self._plans_left)
        for plan in plans:
            if (path := self._plan_path(_name_of(plan))) is not None:
                plan.save(path)
        self._journal[RANGES] = [_name_of(plan) for plan in plans]
        return plans

    def _plans_by_ranges(self) -> Iterator[QuantPlan]:
        return plans_by_ranges(
            self._prepared,
            self._request.recipe,
            self._samples.calibration(self._parts),
            providers=self._request.providers,
        )

    def _plan_path(self, name: str) -> Path | None:
        return self._journal.path(f"plan-{name}.json")

    def _plan(self, stage: Stage, before: Candidates | None) -> QuantPlan:
        """Return the plan that all models of a stage are made from."""
        path = self._plan_path(stage)
        if path is not None and path.exists():
            return QuantPlan.load(path)
        plan = self._make_plan(stage, before)
        if path is not None:
            plan.save(path)
        return plan

    def _make_plan(self, stage: Stage, before: Candidates | None) -> QuantPlan:
        request = self._request
        if stage == TRIMMED:
            assert isinstance(before, StaticCandidates)  # it follows another stage
            request.report("looking at the ranges of the units of most error")
            return trim_ranges(
                before.prepared,
                before.plan,
                before.errors,
                self._choosing,
                among=before.gaining,
                report=request.report,
            )
        calibration = self._samples.calibration(self._parts)
        if request.recipe.mode == "weight-only":
            return mode_of(request.recipe).make_plan(
                request.source, request.recipe, calibration, request.providers
            )
        request.report(f"calibrating with effort {stage}")
        if stage == "low" and TRIMMED in self._stages:
            return self._first_plan()
        return plan_with_effort(
            self._prepared, request.recipe, stage, calibration, providers=request.providers
        )

    @cached_property
    def _choosing(self) -> list[Sample]:
        """The samples that errors are measured on: some of those to calibrate with."""
        calibration = self._samples.calibration(self._parts)
        found = []
        for sample in calibration.open(self._prepared.model):
            found.append(sample)
            if len(found) == MIN_CALIBRATION:
                break
        return found

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
            float_spread=self._float_latency()[1:] if request.goal.purpose == "speed" else None,
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
        evaluator = self._evaluate_on(self._parts.final, "final")
        if is_float:
            return evaluator.test_float().drop
        if evaluator.sample_seconds is None:
            evaluator.sample_seconds = self._evaluator.sample_seconds
        return evaluator.test(best.name, lambda: made.runnable, limit, in_order=True).drop

    @cached_property
    def _meter(self) -> LatencyMeter:
        count = min(len(self._evaluator), MIN_CALIBRATION)
        sample = middle_sized([self._evaluator.feeds(index) for index in range(count)])
        return LatencyMeter(self._prepared.reference, sample, self._request.providers)

    def _latency(self, model: ir.Model) -> Timing:
        """Return the milliseconds of a model: those of float, times what it takes beside it."""
        beside, found = self._meter.measure(model)
        return found.scaled(self._float_latency(beside).least / beside.least)

    def _float_latency(self, measured: Timing | None = None) -> Timing:
        name = "cost/speed/float"
        known = self._journal.get(name)
        if known is None:
            known = self._meter.measure()[0] if measured is None else measured
            self._journal[name] = known
        return Timing(*known)

    def _float_cost(self) -> float:
        """Return what the float model costs, measured as the others are."""
        if self._request.goal.purpose == "size":
            return float(self._prepared.float_size)
        return self._float_latency().least

    def _command(self) -> str:
        """Return the command that makes the same model again."""
        plan = self._journal.path(BEST_PLAN) or "plan.json"
        source = self._request.source
        model = source if isinstance(source, str | Path) else "model.onnx"
        output = self._request.output or "tuned.onnx"
        return shlex.join(["bitwright", "apply", str(plan), str(model), "-o", str(output)])
