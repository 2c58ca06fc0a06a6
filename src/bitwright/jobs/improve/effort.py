"""Effort levels: changes of the recipe that bring the model closer to float, kept if they help.

low       the recipe as it is
standard  + the better of a few range methods, by what one calibration pass saw; the default where
          no recipe is given
medium    + equalization or smoothing, other ranges and bias correction
high      + AdaRound on the most sensitive segments

Samples are cut into two halves: what is calibrated on one is judged on the other, by the loss of
the outputs as `assess.judge` sees it. Sketches merge, so what is kept is calibrated on both in the
end, and its figure in the result comes from holdout samples that neither has. What is kept is a
recipe that gives the same model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Literal, get_args

import msgspec

from bitwright.assess.judge import compare_losses
from bitwright.data import Sample
from bitwright.errors import DataError, RecipeError, did_you_mean
from bitwright.jobs.calibration import Calibration, Evaluation, keep_data, random_data_notes
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.improve.loop import Step, Trail, improve
from bitwright.jobs.improve.proposals.bias_correction import bias_corrections
from bitwright.jobs.improve.proposals.combinations import Attempts, Proposer, combine
from bitwright.jobs.improve.proposals.equalization import equalizations
from bitwright.jobs.improve.proposals.fallback import float_nodes
from bitwright.jobs.improve.proposals.learning import learn
from bitwright.jobs.improve.proposals.ranges import (
    BYTE,
    activation_ranges,
    ranges_by_readers,
    weight_ranges,
)
from bitwright.jobs.improve.proposals.rounding import roundings
from bitwright.jobs.improve.recipes import FIRST, HALVES, Judged, RecipeCandidate, RecipeMaker
from bitwright.jobs.improve.score import describe_gain, is_surely_better
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned, assess_model, emit_model
from bitwright.jobs.result import Result
from bitwright.jobs.static import make_static_plan, quantize_static
from bitwright.learning.reports import require_torch
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe

__all__ = [
    "EFFORTS",
    "Effort",
    "check_effort",
    "plan_with_effort",
    "plans_by_ranges",
    "quantize_with_effort",
    "standard_effort",
]

Effort = Literal["low", "standard", "medium", "high"]
EFFORTS: tuple[str, ...] = get_args(Effort)

MIN_SAMPLES = 8
"""Samples that there must be: two halves that judge each other, and one to measure with."""
MIN_JUDGED = 18
"""From so many samples on, half of all but the holdout are eight, which a bootstrap needs."""
MEASURED = 2
"""How many calibration samples the result is measured on where there is no holdout."""

RANGES: dict[str, Proposer] = {"ranges of activations": activation_ranges}
"""What costs little beside calibration: functions of what it observes."""
FAMILY: dict[str, Proposer] = {
    "equalization": equalizations,
    "ranges of activations": activation_ranges,
    "ranges of weights": weight_ranges,
}
"""What is tried in all combinations: all but the first are functions of the sketches."""
ROUNDING: dict[str, Proposer] = {"rounding": roundings}
"""What comes after them: it reads the data again."""
BIAS_CORRECTION: dict[str, Proposer] = {"bias correction": bias_corrections}
"""The last of them: what it corrects are the errors that the others leave."""


def _low_bit_rounding(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    if maker.prepared.recipe.weight.bits < BYTE:
        yield from combine(maker, trail, kinds=ROUNDING)


_MEDIUM = (
    partial(combine, kinds=FAMILY),
    ranges_by_readers,
    float_nodes,  # before what reads the data again for every candidate
    _low_bit_rounding,
    # Each layer's is accepted on its own already: one half will do.
    partial(combine, kinds=BIAS_CORRECTION, halves=FIRST),
)
LEVELS: Mapping[Effort, Sequence[Callable[..., Attempts]]] = {
    "low": (),
    "standard": (partial(combine, kinds=RANGES),),
    "medium": _MEDIUM,
    "high": (*_MEDIUM, learn),
}
"""What each effort tries, one after the other."""


def check_effort(effort: str, recipe: Recipe, calibration: Calibration) -> None:
    """Refuse what no effort can do anything about, before any work is done."""
    if effort not in EFFORTS:
        raise RecipeError(f"unknown effort {effort!r}.{did_you_mean(effort, EFFORTS)}")
    if recipe.mode != "static":
        reason = {
            "dynamic": "each run of it measures its own ranges",
            "cast": "it has no ranges",
            "weight-only": "it has no ranges of activations, and `rounding`, `awq` and `refine` "
            "say how hard its weights are worked on",
        }[recipe.mode]
        raise RecipeError(
            f"effort is for recipes that calibrate activations, and {recipe.name!r} is "
            f"{recipe.mode}: {reason}; leave effort out."
        )
    if effort == "low":
        return
    if recipe.fine_tune is not None and effort != "high":
        raise RecipeError(
            f"recipe {recipe.name!r} fine-tunes, which is a step of effort 'high'; ask for that, "
            "or leave out one of the two."
        )
    if calibration.data is None:
        raise DataError(
            f"effort {effort!r} chooses by the error on samples and needs data; give data (arrays, "
            "files, a folder of images, a data reader)."
        )
    if calibration.sketches is not None:
        raise RecipeError(
            f"sketches are of one model, and effort {effort!r} tries several; leave them out."
        )
    if effort == "high":
        require_torch()


def standard_effort(recipe: Recipe, calibration: Calibration) -> Effort:
    """Return what effort 'standard' comes to: 'low' where there is nothing to compare by."""
    comparable = (
        recipe.mode == "static"
        and recipe.fine_tune is None
        and recipe.place.portable
        and calibration.data is not None
        and calibration.sketches is None
        and not calibration.is_random
    )
    return "standard" if comparable else "low"


def has_few(samples: Iterable[Sample]) -> bool:
    """Whether half of the samples are too few for a bootstrap."""
    return sum(1 for _ in islice(samples, MIN_JUDGED)) < MIN_JUDGED


def refuse_few(samples: Iterable[Sample]) -> None:
    """Refuse to choose by samples that are too few to be parted."""
    count = sum(1 for _ in islice(samples, MIN_SAMPLES))
    if count < MIN_SAMPLES:
        raise DataError(
            f"effort needs {MIN_SAMPLES} samples, to calibrate with some, choose by others and "
            f"measure with the rest, and there are {count}; give more, or leave effort out."
        )


def quantize_with_effort(
    prepared: Prepared, effort: Effort, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize a model by the best of the recipes that this effort tries."""
    if effort == "high":
        require_torch(compute.device)
    kept = _keep(prepared, effort, calibration)
    if effort == "standard" and has_few(kept.data):
        return quantize_static(prepared, kept, compute)
    return _Improved.by(prepared, effort, kept, compute).write()


def plan_with_effort(prepared: Prepared, effort: Effort, calibration: Calibration) -> QuantPlan:
    """Return the plan for the best of the recipes that this effort tries."""
    if effort == "low":
        return make_static_plan(prepared, calibration)
    kept = _keep(prepared, effort, calibration)
    if effort == "standard" and has_few(kept.data):
        return make_static_plan(prepared, kept)
    return _Improved.by(prepared, effort, kept, ON_CPU).plan()[1].plan


def plans_by_ranges(prepared: Prepared, calibration: Calibration) -> Iterator[QuantPlan]:
    """Yield the plan of a recipe, and behind it those with other range methods of effort.

    One pass over the data gives all of them. Where there are too few samples, or the recipe leaves
    no choice, it is alone.
    """
    recipe = prepared.recipe
    if standard_effort(recipe, calibration) == "low":
        yield make_static_plan(prepared, calibration)
        return
    kept = _keep(prepared, "standard", calibration)
    changes = [change.fields for kind in RANGES.values() for change in kind(recipe, prepared)]
    if not changes or has_few(kept.data):
        yield make_static_plan(prepared, kept)
        return
    maker = RecipeMaker(prepared, kept, halves=FIRST, means=recipe.bias_correction == "fast")
    for fields in ({}, *changes):
        yield maker.finish(recipe.replace(**fields))[1].plan


def _keep(prepared: Prepared, effort: Effort, calibration: Calibration) -> Calibration:
    """Return the data in a form that many passes can read, if the effort can be made with it."""
    check_effort(effort, prepared.recipe, calibration)
    kept = keep_data(prepared, calibration)
    if effort != "standard":
        refuse_few(kept.data)
    return kept


@dataclass(frozen=True, slots=True)
class _Improved:
    """What an effort found, and what makes its model."""

    maker: RecipeMaker
    effort: Effort
    trail: Trail[RecipeCandidate]

    @classmethod
    def by(
        cls, prepared: Prepared, effort: Effort, kept: Calibration, compute: Compute
    ) -> _Improved:
        """Try what an effort tries; learning, which the recipe may ask for, is the last of it."""
        plain, asked = effort == "standard", prepared.recipe
        recipe = asked.replace(fine_tune=None)
        maker = RecipeMaker(
            replace(prepared, recipe=recipe),
            kept,
            compute,
            halves=FIRST if plain else HALVES,
            means=not plain or asked.bias_correction == "fast",
            learning=asked.fine_tune,
        )
        proposals = [partial(propose, maker) for propose in LEVELS[effort]]
        start = Judged(recipe)
        return cls(maker, effort, improve(start, proposals, maker.make, is_surely_better))

    def plan(self) -> tuple[Prepared, Planned]:
        """Carry the best out on both halves."""
        best, maker = self.trail.best, self.maker
        assert best is not None  # the recipe as it was given, if nothing else
        recipe = best.recipe
        prepared, planned = maker.finish(recipe)
        if recipe != maker.prepared.recipe and self.effort != "standard":
            recipe = recipe.replace(name=f"{recipe.name}, effort {self.effort}")
        random = maker.calibration.is_random
        plan = msgspec.structs.replace(planned.plan, recipe=recipe, random_data=random)
        plan = plan.with_notes([*random_data_notes(random), *self._notes()])
        return prepared, replace(planned, plan=plan)

    def write(self) -> Result:
        """Write the best, and measure it on samples that no half has."""
        prepared, planned = self.plan()
        held = self.maker.holdout
        evaluation = Evaluation(held or self.maker.judged[0][:MEASURED], unseen=bool(held))
        written = emit_model(prepared, planned)
        return assess_model(prepared, written, evaluation, self.maker.data)

    def _notes(self) -> Iterator[str]:
        few = self.maker.make(Judged(self.maker.prepared.recipe)).judgement.note
        if few is not None:
            yield f"steps of effort are {few}"
        for step in self.trail.steps:
            # What nobody asked for is told where it made a difference.
            if isinstance(step, str) or step.kept or self.effort != "standard":
                yield f"effort: {_describe(step)}"


def _describe(step: Step[RecipeCandidate] | str) -> str:
    if isinstance(step, str):
        return step
    if step.before is None or step.after is None:
        return f"{step.name}: nothing to try"
    found = compare_losses(step.before.losses, step.after.losses)
    return describe_gain(step.name, found, kept=step.kept)
