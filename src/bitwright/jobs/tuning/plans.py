"""Plans that a search makes its models from: each made once, and then read from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from bitwright.data import Sample
from bitwright.errors import PlanError
from bitwright.jobs.calibration import take_samples
from bitwright.jobs.improve.effort import Effort, plan_with_effort, plans_by_ranges
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.mixtures import Mixtures
from bitwright.jobs.improve.recipes import preparation_key
from bitwright.jobs.modes import mode_of
from bitwright.jobs.opening import Prepared, open_model
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.mixtures import StaticMixtures
from bitwright.jobs.tuning.request import TuneRequest, TuneSamples
from bitwright.jobs.tuning.trimming import trim_ranges
from bitwright.plan import QuantPlan
from bitwright.support.notices import warn_user

RANGES = "ranges"
MIN_CALIBRATION = 8

TRIMMED: Literal["trimmed"] = "trimmed"
Stage = Effort | Literal["trimmed"]
"""What the plan of a stage is made by: an effort, or smaller ranges of the plan before it."""


class Plans:
    """Makes the plans of a request, and what a search chooses between for each."""

    def __init__(self, request: TuneRequest, samples: TuneSamples, journal: Journal) -> None:
        """Take what is to be tuned; nothing is read before it is needed."""
        self._request, self._samples, self._journal = request, samples, journal
        self._plans_left: Iterator[QuantPlan] | None = None

    @cached_property
    def prepared(self) -> Prepared:
        """The float model as evaluations run it."""
        return open_model(self._request.source, self._request.recipe, self._request.providers)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What plans are made by, one after the other, until one is good enough."""
        given = self._request.effort
        if self._request.recipe.mode == "weight-only":
            return ("low",)
        if given is not None:
            return (given,)
        if self._request.goal.is_timed:
            return ("low", TRIMMED, "medium")
        # Of a model for size, units go below 8 bits: that takes the best plan in any case.
        return ("standard", "medium")

    def mixtures(self, stage: Stage, before: Mixtures | None) -> Mixtures:
        """Return the models of the plan of a stage; `before` are those of the stage before it."""
        request = self._request
        if request.recipe.mode == "weight-only":
            from bitwright.jobs.tuning.weight_only import WeightOnlyMixtures  # for few recipes

            plan, data = self._plan(stage, before), self._samples.calibration()
            return WeightOnlyMixtures(
                plan, stage, self._journal, self._priced, request, self._choosing, data
            )
        same = before if stage == TRIMMED and isinstance(before, StaticMixtures) else None
        return self._static(stage, self._plan(stage, before), same)

    def with_other_ranges(self) -> list[StaticMixtures]:
        """Return the models of the plans with other range methods than the first one."""
        return [self._static(_name_of(plan), plan) for plan in self._other_plans()]

    def _static(
        self, name: str, plan: QuantPlan, before: StaticMixtures | None = None
    ) -> StaticMixtures:
        name, choosing = self._with_purpose(name), lambda: self._choosing
        return StaticMixtures(
            plan, name, self._journal, self._priced, self._request, self._open_for, choosing, before
        )

    @property
    def _priced(self) -> str:
        goal = self._request.goal
        return f"{goal.purpose}, quantized" if goal.keep_quantized else goal.purpose

    def _open_for(self, plan: QuantPlan) -> Prepared:
        """Return the float model that a plan is for; most plans are for the one that is open."""
        opened = self.prepared
        alike = preparation_key(plan.recipe) == preparation_key(opened.recipe)
        if alike and not plan.smoothing and plan.fingerprint == opened.fingerprint:
            return replace(opened, recipe=plan.recipe)
        return open_for_plan(self._request.source, plan, self._request.providers)

    def _first_plan(self) -> QuantPlan:
        """Return the plan of the recipe as it is; others wait for being asked for."""
        self._plans_left = plans_by_ranges(self.prepared, self._samples.calibration())
        return next(self._plans_left)

    def _other_plans(self) -> list[QuantPlan]:
        """Return the plans with other range methods than the first plan."""
        known: list[str] | None = self._journal.get(self._with_purpose(RANGES))
        kept = [_load_kept(path) for path in map(self._plan_path, known or ()) if path]
        if known is not None and None not in kept:
            return [plan for plan in kept if plan is not None]
        if self._plans_left is None:  # the first one was there, from an earlier run
            self._first_plan()
        assert self._plans_left is not None
        plans = list(self._plans_left)
        for plan in plans:
            if (path := self._plan_path(_name_of(plan))) is not None:
                plan.save(path)
        self._journal[self._with_purpose(RANGES)] = [_name_of(plan) for plan in plans]
        return plans

    def _plan_path(self, name: str) -> Path | None:
        return self._journal.path(f"plan-{self._with_purpose(name)}.json")

    def _with_purpose(self, name: str) -> str:
        """Return what the plan of this purpose is kept under: others have other nodes in float."""
        purpose = self._request.recipe.place.purpose
        return name if purpose == "size" else f"{name}-{purpose}"

    def _plan(self, stage: Stage, before: Mixtures | None) -> QuantPlan:
        """Return the plan that all models of a stage are made from."""
        path = self._plan_path(stage)
        kept = None if path is None else _load_kept(path)
        plan = self._make_plan(stage, before) if kept is None else kept
        if path is not None:
            plan.save(path)
        return plan

    def _make_plan(self, stage: Stage, before: Mixtures | None) -> QuantPlan:
        request = self._request
        if stage == TRIMMED:
            assert isinstance(before, StaticMixtures)  # it follows another stage
            request.report("looking at the ranges of the units of most error")
            return trim_ranges(
                before.prepared,
                before.plan,
                before.table,
                self._choosing,
                report=request.report,
            )
        calibration = self._samples.calibration()
        if request.recipe.mode == "weight-only":
            return mode_of(request.recipe).make_plan(self.prepared, calibration)
        request.report(f"calibrating with effort {stage}")
        if stage == "low" and TRIMMED in self.stages:
            return self._first_plan()
        return plan_with_effort(self.prepared, stage, calibration)

    @cached_property
    def _choosing(self) -> list[Sample]:
        """The samples that errors are measured on: some of those to calibrate with."""
        return take_samples(self.prepared, self._samples.calibration(), MIN_CALIBRATION)


def _name_of(plan: QuantPlan) -> str:
    """Return what the figures of a plan with another range method are kept under."""
    return f"{RANGES}-{plan.recipe.ranges.__struct_config__.tag}"


def decide_the_same(one: Mixtures, other: Mixtures) -> bool:
    """Whether two static plans give the same model: more effort found nothing better to do."""
    if not isinstance(one, StaticMixtures) or not isinstance(other, StaticMixtures):
        return False
    fields = ("tensors", "nodes", "outputs", "smoothing", "bias_shifts", "weight_gains")
    return all(getattr(one.plan, name) == getattr(other.plan, name) for name in fields)


def _load_kept(path: Path) -> QuantPlan | None:
    """Return a plan that an earlier run kept; None, with a warning, where it is damaged."""
    try:
        return QuantPlan.load(path) if path.exists() else None
    except PlanError as error:
        warn_user(f"{error} It is made again.")
        return None
