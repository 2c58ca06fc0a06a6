"""Plans that a search makes its models from: each made once, and then read from the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal

from bitwright.data import Sample
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
        return [
            self._static(_name_of(plan), plan) for plan in self._keep(RANGES, self._other_plans)
        ]

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

    @cached_property
    def _by_ranges(self) -> Iterator[QuantPlan]:
        """The plan of the recipe as it is, and others, which wait for being asked for."""
        return plans_by_ranges(self.prepared, self._samples.calibration())

    def _other_plans(self) -> list[QuantPlan]:
        """Return the plans with other range methods than the first plan."""
        if "_by_ranges" not in self.__dict__:  # the first one was there, from an earlier run
            next(self._by_ranges)
        return list(self._by_ranges)

    def _keep(self, name: str, make: Callable[[], list[QuantPlan]]) -> list[QuantPlan]:
        """Return plans of the journal, or make them and write them there."""
        name = f"plans/{self._with_purpose(name)}"
        if name not in self._journal:
            self._journal[name] = [plan.to_json() for plan in make()]
        return [QuantPlan.from_json(text) for text in self._journal.get(name)]

    def _with_purpose(self, name: str) -> str:
        """Return what the plan of this purpose is kept under: others have other nodes in float."""
        purpose = self._request.recipe.place.purpose
        return name if purpose == "size" else f"{name}-{purpose}"

    def _plan(self, stage: Stage, before: Mixtures | None) -> QuantPlan:
        """Return the plan that all models of a stage are made from."""
        return self._keep(stage, lambda: [self._make_plan(stage, before)])[0]

    def _make_plan(self, stage: Stage, before: Mixtures | None) -> QuantPlan:
        request = self._request
        if stage == TRIMMED:
            assert isinstance(before, StaticMixtures)  # it follows another stage
            request.report("looking at the ranges of the units of most error")
            return trim_ranges(
                before.prepared, before.plan, before.table, self._choosing, report=request.report
            )
        calibration = self._samples.calibration()
        if request.recipe.mode == "weight-only":
            return mode_of(request.recipe).make_plan(self.prepared, calibration)
        request.report(f"calibrating with effort {stage}")
        if stage == "low" and TRIMMED in self.stages:
            return next(self._by_ranges)
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
