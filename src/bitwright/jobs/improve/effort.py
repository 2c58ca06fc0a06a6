"""Effort levels: changes of the recipe that bring the model closer to float, kept if they help.

low       the recipe as it is
standard  the best of three range methods, then bias correction if it helps; the default where no
          recipe is given
medium    + gain correction, equalization or smoothing, ranges of weights, and nodes in float;
          of a dynamic recipe smoothing alone
high      + AdaRound on the most sensitive segments

Samples are observed once, in four folds. Ranges of three are judged on the fourth; what is written
has those of all. What corrects weights by data does so on three folds and is judged on the fourth.
The lower mean noise over signal, in dB, is better; a level starts with what the one below it has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from bitwright.assess.judge.noise import Noise
from bitwright.data import Sample, split_samples
from bitwright.errors import DataError, RecipeError, did_you_mean
from bitwright.jobs.calibration import Calibration, Evaluation, keep_data, random_data_notes
from bitwright.jobs.improve.loop import Attempt, Trail, improve
from bitwright.jobs.improve.proposals.bias_correction import correct_biases, gain_corrections
from bitwright.jobs.improve.proposals.equalization import equalizations
from bitwright.jobs.improve.proposals.fallback import float_nodes
from bitwright.jobs.improve.proposals.learning import learn
from bitwright.jobs.improve.proposals.ranges import (
    activation_ranges,
    choose_ranges,
    roundings,
    weight_ranges,
)
from bitwright.jobs.improve.recipes import Attempts, RecipeCandidate, RecipeMaker, choose
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, prepare_further
from bitwright.jobs.output import Planned, assess_model, emit_model, open_quantized
from bitwright.jobs.result import Result
from bitwright.jobs.static import make_static_plan, plan_static, quantize_static
from bitwright.learning.reports import require_torch
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe, SmoothQuant

Effort = Literal["low", "standard", "medium", "high"]
EFFORTS: tuple[str, ...] = get_args(Effort)

MIN_SAMPLES = 8
"""Samples that there must be: four folds that judge each other, and one to measure with."""
MIN_JUDGED = 18
"""From so many samples on, `standard` chooses: folds are four at least."""
MEASURED = 2
"""How many calibration samples the result is measured on where there is no holdout."""

_STANDARD = (choose_ranges, partial(choose, kind=roundings), correct_biases)
_MEDIUM = (
    *_STANDARD,
    partial(choose, kind=gain_corrections),
    partial(choose, kind=equalizations),
    partial(choose, kind=weight_ranges),
    float_nodes,
)
LEVELS: Mapping[Effort, Sequence[Callable[..., Attempts]]] = {
    "low": (),
    "standard": _STANDARD,
    "medium": _MEDIUM,
    "high": (*_MEDIUM, learn),
}
"""What each effort tries, one after the other."""


def check_effort(effort: str, recipe: Recipe, calibration: Calibration) -> None:
    """Refuse what no effort can do anything about, before any work is done."""
    if effort not in EFFORTS:
        raise RecipeError(f"unknown effort {effort!r}.{did_you_mean(effort, EFFORTS)}")
    if recipe.mode != "static" and (recipe.mode, effort) != ("dynamic", "medium"):
        reason = {
            "dynamic": "each run of it measures its own ranges, so that data can only smooth "
            "activations, which is effort 'medium'",
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
    if recipe.mode == "dynamic" and recipe.smooth is not None:
        raise RecipeError(
            f"effort {effort!r} tries to smooth the activations of a dynamic recipe, which "
            f"{recipe.name!r} does already; leave effort out."
        )
    if not recipe.place.portable:
        raise RecipeError(
            "the quantized model cannot be run here, and effort chooses by its error; leave effort "
            "out, or switch place.portable on."
        )
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


def _has_few(samples: Iterable[Sample]) -> bool:
    """Whether samples are too few to be parted."""
    return sum(1 for _ in islice(samples, MIN_JUDGED)) < MIN_JUDGED


def _unjudged(prepared: Prepared) -> Prepared:
    """Return the model for the recipe that is best on average, where nothing can be judged."""
    recipe = prepared.recipe.replace(**activation_ranges(prepared.recipe)[0].fields)
    off = recipe.bias_correction == "off"
    return prepare_further(
        prepared, recipe.replace(bias_correction="sequential") if off else recipe
    )


def quantize_with_effort(
    prepared: Prepared, effort: Effort, calibration: Calibration, compute: Compute = ON_CPU
) -> Result:
    """Quantize a model by the best of the recipes that this effort tries."""
    if effort == "high":
        require_torch(compute.device)
    kept = _keep(prepared, effort, calibration)
    if prepared.recipe.mode == "dynamic":
        return quantize_static(_smoothed(prepared, effort, kept), kept, compute)
    if effort == "standard" and _has_few(kept.data):
        return quantize_static(_unjudged(prepared), kept, compute)
    return _Improved.by(prepared, effort, kept, compute).write()


def plan_with_effort(prepared: Prepared, effort: Effort, calibration: Calibration) -> QuantPlan:
    """Return the plan for the best of the recipes that this effort tries."""
    if effort == "low":
        return make_static_plan(prepared, calibration)
    kept = _keep(prepared, effort, calibration)
    if prepared.recipe.mode == "dynamic":
        return make_static_plan(_smoothed(prepared, effort, kept), kept)
    if effort == "standard" and _has_few(kept.data):
        return make_static_plan(_unjudged(prepared), kept)
    return _Improved.by(prepared, effort, kept, ON_CPU).plan()[1].plan


def _smoothed(prepared: Prepared, effort: Effort, kept: Calibration) -> Prepared:
    """Return the model for the better of a dynamic recipe and the same with smoothing."""
    trail = improve_dynamic(prepared, kept)
    recipe = trail.current.recipe
    if recipe != prepared.recipe:
        recipe = recipe.replace(name=f"{recipe.name}, effort {effort}")
    return replace(prepared, recipe=recipe, notes=(*prepared.notes, *_notes(effort, trail)))


def plans_by_ranges(prepared: Prepared, calibration: Calibration) -> Iterator[QuantPlan]:
    """Yield the plan of a recipe, and behind it those with the range methods of effort.

    One pass over the data gives all of them. Where there are too few samples, or the recipe leaves
    no choice, it is alone.
    """
    recipe = prepared.recipe
    if standard_effort(recipe, calibration) == "low":
        yield make_static_plan(prepared, calibration)
        return
    kept = _keep(prepared, "standard", calibration)
    changes = [change.fields for change in activation_ranges(recipe) if change.fields]
    if not changes or _has_few(kept.data):
        yield make_static_plan(prepared, kept)
        return
    maker = RecipeMaker(prepared, kept)
    for fields in ({}, *changes):
        yield maker.finish(recipe.replace(**fields))[1].plan


def _keep(prepared: Prepared, effort: Effort, calibration: Calibration) -> Calibration:
    """Return the data in a form that many passes can read, if the effort can be made with it."""
    check_effort(effort, prepared.recipe, calibration)
    kept = keep_data(prepared, calibration)
    if effort != "standard":
        count = sum(1 for _ in islice(kept.data, MIN_SAMPLES))
        if count < MIN_SAMPLES:
            raise DataError(
                f"effort needs {MIN_SAMPLES} samples, to calibrate with some, choose by others "
                f"and measure with the rest, and there are {count}; give more, or leave effort out."
            )
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
        asked = prepared.recipe
        recipe = asked.replace(fine_tune=None)
        start = replace(prepared, recipe=recipe)
        maker = RecipeMaker(start, kept, compute, learning=asked.fine_tune)
        proposals = [partial(propose, maker) for propose in LEVELS[effort]]
        return cls(
            maker, effort, improve(None, proposals, maker.make, lambda a, b: b.loss <= a.loss)
        )

    def plan(self) -> tuple[Prepared, Planned]:
        """Return the best as it was judged; if only its ranges were, it is carried out."""
        best, maker = self.trail.current, self.maker
        recipe = best.recipe
        prepared, planned = best.prepared, best.planned
        if not best.is_final or planned.constants:  # weights are rounded by all samples
            prepared, planned = maker.finish(recipe)
        if recipe != maker.prepared.recipe and self.effort != "standard":
            recipe = recipe.replace(name=f"{recipe.name}, effort {self.effort}")
        random = maker.calibration.is_random
        plan = msgspec.structs.replace(planned.plan, recipe=recipe, random_data=random)
        plan = plan.with_notes([*random_data_notes(random), *_notes(self.effort, self.trail)])
        return prepared, replace(planned, plan=plan)

    def write(self) -> Result:
        """Write the best, and measure it on samples that no fold has."""
        prepared, planned = self.plan()
        held = self.maker.holdout
        evaluation = Evaluation(held or self.maker.judged[-1][:MEASURED], unseen=bool(held))
        written = emit_model(prepared, planned)
        return assess_model(prepared, written, evaluation, self.maker.data)


def _notes(effort: Effort, trail: Trail[Any]) -> Iterator[str]:
    """Tell what was chosen in one line with the figures of all, then what more was tried."""
    told = []
    for step in trail.steps:
        if isinstance(step, str):
            told.append(step)
            continue
        both = (step.before, step.after)
        shown = " -> ".join(f"{-one.loss:.1f} dB" for one in both if one is not None)
        fate = "" if step.before is None else " (kept)" if step.kept else " (not kept)"
        told.append(f"{step.name} {shown or 'has nothing to try'}{fate}")
    yield f"effort {effort}, signal over noise on held-out samples: {'; '.join(told)}"


# Dynamic recipes -------------------------------------------------------------------------------
#
# Each run measures its own ranges, so that samples can only say which channels are outliers beside
# the others. Their factors are those of three folds, judged on the fourth; what is written has the
# factors of all.


MAX_JUDGED = 8
"""Number of samples of the last fold that a recipe is judged on."""
ALPHA = 0.5
"""Strength of the smoothing: "auto" goes by the step of one scale for a whole activation."""
MIN_GAIN = 0.5
"""Decibels that smoothing has to gain: where nothing stands out it moves a tenth up or down, and a
factor that no norm takes costs a Mul. The 3-layer MiniLM gains 1.6."""


def improve_dynamic(prepared: Prepared, kept: Calibration) -> Trail[RecipeCandidate]:
    """Return what was tried on a dynamic recipe, with data that can be read again."""
    split, noise = split_samples(kept.data), Noise(prepared.reference)
    folds = replace(kept, data=split.but_last, holdout=False)
    last = replace(kept, data=split.folds[-1], holdout=False)
    judged = list(islice(last.open(prepared.model), MAX_JUDGED))
    expected = [noise.keep(one, prepared.reference_session.run(one)) for one in judged]

    def make(recipe: Recipe) -> RecipeCandidate:
        """Write the model of a recipe by three folds, and compare its outputs with float's."""
        decided = plan_static(replace(prepared, recipe=recipe), folds)
        planned = Planned(decided.plan)
        session = open_quantized(decided.prepared, planned, checked=False).session
        assert session is not None  # dynamic models have operators of the runtime only
        pairs = zip(expected, judged, strict=True)
        losses = np.array([noise.decibels(wanted, session.run(one)) for wanted, one in pairs])
        return RecipeCandidate(recipe, decided.prepared, planned, losses)

    def smooth(trail: Trail[RecipeCandidate]) -> Generator[Attempt[Recipe], Any, None]:
        """Propose to move outliers of channels into the weights."""
        smoothed = prepared.recipe.replace(smooth=SmoothQuant(alpha=ALPHA))
        yield Attempt(smoothed, "SmoothQuant")

    return improve(prepared.recipe, [smooth], make, lambda a, b: a.loss - b.loss >= MIN_GAIN)
