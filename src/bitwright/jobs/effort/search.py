"""The search of an effort: combinations of changes, each judged on samples that it did not see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.assess import NodeSensitivity
from bitwright.assess.judge import Difference, compare_losses
from bitwright.errors import BitwrightError, ModelError, RecipeError
from bitwright.jobs.calibration import Calibration, Evaluation, keep_data
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.effort.levels import (
    Effort,
    check_effort,
    has_few,
    refuse_few,
    standard_effort,
)
from bitwright.jobs.effort.readers import better_methods
from bitwright.jobs.effort.steps import (
    BIAS_CORRECTION,
    BYTE,
    FAMILY,
    RANGES,
    ROUNDING,
    Change,
    Propose,
)
from bitwright.jobs.effort.trials import FIRST, Trial, Trials
from bitwright.jobs.fine_tuning.segment import require_torch
from bitwright.jobs.opening import Prepared, open_model
from bitwright.jobs.output import Planned, assess_model, emit_model
from bitwright.jobs.result import Result
from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES, measure_sensitivity
from bitwright.jobs.static import make_static_plan, quantize_static, random_data_notes
from bitwright.plan import QuantPlan
from bitwright.recipe import AdaRound, Override, Recipe
from bitwright.recipe.finetuning import LEARNING_OPS, FineTuning
from bitwright.support.wording import counted

__all__ = [
    "Step",
    "default_learning",
    "plan_with_effort",
    "plans_by_ranges",
    "quantize_with_effort",
]

MIN_GAIN = 0.1
"""The share of the loss that a step must take away where samples are too few for a bootstrap."""
FINALISTS = 4
"""How many combinations, the best on one half of the samples, are judged on the other, too."""
READER_SAMPLES = 8
"""How many samples what reads a tensor is run on, for each range method."""
MEASURED = 2
"""How many calibration samples the result is measured on where there is no holdout."""
MIN_REGAINED = 0.05
"""The share of the loss that a node must regain to be left float."""
FALLBACK_NODES = 16
FALLBACK_SAMPLES = 4
"""How many nodes are measured for that, and on how many samples: what stays is judged on all."""
MAX_FALLBACK = 4
"""How many nodes are left float at most."""
MAX_FLOAT_SHARE = 0.02
"""The share of all multiply-adds that may leave the integer kernels for that."""
ERROR_FRACTION = 0.8
"""AdaRound goes to the segments whose weights make this fraction of the error."""
SENSITIVITY_NODES = 64
"""How many nodes are measured for AdaRound, those that lose most on their own."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one change does to the loss of the outputs on samples that it was not calibrated on."""

    name: str
    difference: Difference

    @property
    def kept(self) -> bool:
        """Whether it is worth keeping: by chance alone it would not have helped so many samples.

        However large, a mean gain that few samples make is lost again on others.
        """
        found = self.difference
        if found.better is None:
            return found.samples > 1 and found.gain >= MIN_GAIN
        return found.is_sure

    def __str__(self) -> str:
        found = self.difference
        before, after = (f"{100 * loss:.3g} %" for loss in (found.before, found.after))
        verdict = "kept" if self.kept else "not kept"
        sure = (
            "" if found.better is None else f" (better in {100 * found.better:.0f} % of resamples)"
        )
        return f"{self.name}: output error {before} -> {after}{sure}, {verdict}"


def quantize_with_effort(
    source: Any,
    recipe: Recipe,
    effort: Effort,
    calibration: Calibration,
    *,
    providers: Sequence[str] | None = None,
    compute: Compute = ON_CPU,
) -> Result:
    """Quantize a model by the best of the recipes that this effort tries."""
    prepared, kept = _open(source, recipe, effort, calibration, providers, compute)
    if effort == "standard" and has_few(kept.data):
        return quantize_static(prepared, recipe, kept, providers, compute)
    return _search(prepared, recipe, effort, kept, compute).finish()


def plan_with_effort(
    source: Any,
    recipe: Recipe,
    effort: Effort,
    calibration: Calibration,
    *,
    providers: Sequence[str] | None = None,
) -> QuantPlan:
    """Return the plan for the best of the recipes that this effort tries."""
    if effort == "low":
        return make_static_plan(source, recipe, calibration, providers)
    prepared, kept = _open(source, recipe, effort, calibration, providers, ON_CPU)
    if effort == "standard" and has_few(kept.data):
        return make_static_plan(prepared, recipe, kept, providers)
    return _search(prepared, recipe, effort, kept, ON_CPU).plan()[1].plan


def plans_by_ranges(
    source: Any,
    recipe: Recipe,
    calibration: Calibration,
    *,
    providers: Sequence[str] | None = None,
) -> Iterator[QuantPlan]:
    """Yield the plan of a recipe, and behind it those with other range methods of effort.

    One pass over the data gives all of them. Where there are too few samples, or the recipe leaves
    no choice, it is alone.
    """
    if standard_effort(recipe, calibration) == "low":
        yield make_static_plan(source, recipe, calibration, providers)
        return
    prepared, kept = _open(source, recipe, "standard", calibration, providers, ON_CPU)
    changes = [change.fields for step in RANGES.values() for change in step(recipe, prepared)]
    if not changes or has_few(kept.data):
        yield make_static_plan(prepared, recipe, kept, providers)
        return
    trials = Trials(prepared, kept, halves=FIRST, means=recipe.bias_correction == "fast")
    for fields in ({}, *changes):
        yield trials.finish(recipe.replace(**fields))[1].plan


def _open(
    source: Any,
    recipe: Recipe,
    effort: Effort,
    calibration: Calibration,
    providers: Sequence[str] | None,
    compute: Compute,
) -> tuple[Prepared, Calibration]:
    """Return the model to start with, and the data in a form that many passes can read."""
    check_effort(effort, recipe, calibration)
    if effort == "high":
        require_torch(compute.device)
    prepared = open_model(source, recipe.replace(fine_tune=None), providers)
    kept = keep_data(prepared, calibration)
    if effort != "standard":
        refuse_few(kept.data)
    return prepared, kept


def _search(
    prepared: Prepared, recipe: Recipe, effort: Effort, kept: Calibration, compute: Compute
) -> _Search:
    """Try what an effort tries."""
    if effort == "standard":
        means = recipe.bias_correction == "fast"
        trials = Trials(prepared, kept, compute, halves=FIRST, means=means)
        search = _Search(trials, effort)
        search.combine(RANGES)
        return search
    search = _Search(Trials(prepared, kept, compute), effort)
    search.combine(FAMILY)
    search.range_by_readers()
    search.fall_back()  # before what reads the data again for every trial
    if recipe.weight.bits < BYTE:
        search.combine(ROUNDING)
    search.combine(BIAS_CORRECTION, FIRST)  # each layer's is accepted on its own already
    if effort == "high":
        search.learn(recipe.fine_tune)
    return search


class _Search:
    """The best recipe so far, and what was found on the way to it."""

    def __init__(self, trials: Trials, effort: Effort) -> None:
        self._trials, self._effort = trials, effort
        self._given = trials.prepared.recipe
        self._best = trials.carry_out(trials.start(self._given))
        self._notes: list[str] = []
        if (note := self._best.judgement.note) is not None:
            self._notes.append(f"steps of effort are {note}")

    def combine(self, steps: Mapping[str, Propose], halves: Sequence[int] | None = None) -> None:
        """Try all combinations of what these steps propose, and go on with the best of them.

        `halves` are those to calibrate on and to judge by, if not as for all others.
        """
        recipe = self._best.recipe
        prepared = self._trials.open(recipe)
        proposed = {name: list(step(recipe, prepared)) for name, step in steps.items()}
        if halves is not None and any(proposed.values()):
            self._best = self._trials.carry_out(self._trials.start(recipe), halves)
        self._try_all(proposed, halves)

    def _try_all(
        self, proposed: Mapping[str, Sequence[Change]], halves: Sequence[int] | None = None
    ) -> None:
        grid = _Grid(self._trials, self._best, list(filter(None, proposed.values())), halves)
        found = grid.choose()
        empty = [f"{name}: nothing to try" for name, changes in proposed.items() if not changes]
        if self._effort == "standard":  # what nobody asked for is told where it made a difference
            empty, found = [], [step for step in found if step.kept]
        self._notes += [f"effort: {note}" for note in (*empty, *grid.refusals, *map(str, found))]
        self._best = grid.best
        self._trials.forget_all_but(self._best.recipe)

    def range_by_readers(self) -> None:
        """Give tensors the range method of the least error behind what reads them."""
        trials, recipe = self._trials, self._best.recipe
        proposed = RANGES["ranges of activations"](self._given, trials.prepared)
        others = [change.fields["ranges"] for change in proposed]
        methods = [recipe.ranges, *(m for m in (self._given.ranges, *others) if m != recipe.ranges)]
        decided = [trials.decide(recipe.replace(ranges=method)) for method in methods]
        plans = [one.plan for one in decided]
        better = better_methods(decided[0].prepared, plans, trials.judged[1][:READER_SAMPLES])
        overrides = dict(recipe.overrides)
        for name, index in better.items():
            given = overrides.get(name, Override())
            overrides[name] = msgspec.structs.replace(given, ranges=methods[index])
        title = f"ranges of {counted(len(better), 'tensor')} by the error behind what reads them"
        changes = [Change(title, {"overrides": overrides})] if better else []
        self._try_all({"ranges by the error behind what reads them": changes})

    def fall_back(self) -> None:
        """Leave the most sensitive nodes float, if that regains much and costs little work."""
        recipe = self._best.recipe
        whole = self._integer_share(recipe)
        # Where the runtime has no integer kernels, or their work is not known, so is not its price.
        names = self._worst_nodes() if whole > 0 else []
        changes = []
        for count in range(1, len(names) + 1):
            exclude = (*recipe.select.exclude, *names[:count])
            title = f"{counted(count, 'most sensitive node')} float ({', '.join(names[:count])})"
            fields = {"select": msgspec.structs.replace(recipe.select, exclude=exclude)}
            if self._integer_share(recipe.replace(**fields)) >= whole - MAX_FLOAT_SHARE:
                changes.append(Change(title, fields))
        self._try_all({"nodes that fall back to float": changes})

    def _worst_nodes(self) -> list[str]:
        """Return the nodes that would regain most, the worst first."""
        measured = self._measure_nodes(FALLBACK_NODES, FALLBACK_SAMPLES)
        worst = [node for node in measured if node.regained >= MIN_REGAINED]
        ranked = sorted(worst, key=lambda node: node.regained, reverse=True)
        return [node.name for node in ranked[:MAX_FALLBACK]]

    def _integer_share(self, recipe: Recipe) -> float:
        """Return the share of multiply-adds that the runtime computes in integers, or NaN."""
        found = self._trials.coverage(recipe)
        return math.nan if found is None or found.share is None else found.share

    def learn(self, learning: FineTuning | None) -> None:
        """Let the weights of the most sensitive segments learn, if that helps.

        All of them do in place of second moments, or those that do not learn would be the worse.
        """
        trials, recipe = self._trials, self._best.recipe
        nodes: tuple[str, ...] | None = ()
        if recipe.rounding != self._given.rounding:
            nodes = None
        elif learning is not None or recipe.weight.is_integer:
            nodes = self._most_sensitive()
        if nodes == ():
            self._notes.append("effort: AdaRound: nothing to try")
            return
        learning = msgspec.structs.replace(learning or default_learning(recipe), nodes=nodes)
        corrected = "off" if recipe.bias_correction == "off" else "sequential"
        rounding = self._given.rounding
        learned = recipe.replace(fine_tune=learning, bias_correction=corrected, rounding=rounding)
        try:
            found = trials.carry_out(trials.start(learned), FIRST)
        except (ModelError, RecipeError) as error:
            self._notes.append(f"effort: {_refusal('AdaRound', error)}")
            return
        before = trials.carry_out(trials.start(recipe), FIRST)
        step = _compare("AdaRound", before, found)
        self._notes.append(f"effort: {step}")
        if step.kept:
            self._best = found

    def _most_sensitive(self) -> tuple[str, ...]:
        """Return the nodes that make most of the error and can learn, the worst first."""
        measured = self._measure_nodes(SENSITIVITY_NODES, SENSITIVITY_SAMPLES)
        learning = [node for node in measured if node.op in LEARNING_OPS]
        ranked = sorted(learning, key=lambda node: node.weight, reverse=True)
        sums = np.cumsum([node.weight for node in ranked])
        if not sums.size or not np.isfinite(sums[-1]) or sums[-1] == 0:
            return ()
        needed = int(np.searchsorted(sums, ERROR_FRACTION * sums[-1])) + 1
        return tuple(node.name for node in ranked[:needed])

    def _measure_nodes(self, candidates: int, samples: int) -> Sequence[NodeSensitivity]:
        """Return what the nodes that lose most on their own do to the outputs."""
        trials, plan = self._trials, self._best.plan
        assert plan is not None
        measuring = Measuring(
            samples=trials.judged[1][:samples],
            providers=trials.prepared.providers,
            memory_budget=trials.calibration.memory_budget,
            engine=trials.calibration.engine,
            progress=trials.calibration.progress,
        )
        source = trials.prepared.source
        found = measure_sensitivity(source, plan, measuring, candidates=candidates)
        return found.nodes

    def plan(self) -> tuple[Prepared, Planned]:
        """Carry the best out on both halves."""
        trials, recipe = self._trials, self._best.recipe
        prepared, planned = trials.finish(recipe)
        if recipe != self._given and self._effort != "standard":
            recipe = recipe.replace(name=f"{recipe.name}, effort {self._effort}")
        random = trials.calibration.is_random
        plan = msgspec.structs.replace(planned.plan, recipe=recipe, random_data=random)
        plan = plan.with_notes([*random_data_notes(random), *self._notes])
        return prepared, replace(planned, plan=plan)

    def finish(self) -> Result:
        """Write the best, and measure it on samples that no half has."""
        prepared, planned = self.plan()
        held = self._trials.holdout
        evaluation = Evaluation(held or self._trials.judged[0][:MEASURED], unseen=bool(held))
        written = emit_model(prepared, planned)
        return assess_model(prepared, written, evaluation, self._trials.data)


Losses = npt.NDArray[np.float64]
Combination = tuple[int, ...]
"""For each step, which of its changes is made, from 1 on; 0: none."""


class _Grid:
    """All combinations of some changes, and the best of them."""

    def __init__(
        self,
        trials: Trials,
        base: Trial,
        steps: Sequence[Sequence[Change]],
        halves: Sequence[int] | None = None,
    ) -> None:
        self._trials, self._steps, self._halves = trials, steps, halves
        self._nothing = (0,) * len(steps)
        self._known: dict[Combination, Trial] = {self._nothing: base}
        self._first: dict[Combination, Losses] = {self._nothing: base.judgement.losses}
        """What the first half gave, which comes first where there are both."""
        self.refusals: list[str] = []
        self._best = self._nothing

    @property
    def best(self) -> Trial:
        """The trial of the combination that was chosen."""
        return self._known[self._best]

    def choose(self) -> list[Step]:
        """Choose the combination of the least loss, less what it is no better for.

        Each change is tried alone first, and combined with others where that helps; what does not
        help on the first half of the samples is not tried on the second.
        Returns what each change of it is good for, and the best change of every other step.
        """
        singles = [
            self._alone(index, choice)
            for index, changes in enumerate(self._steps)
            for choice in range(1, len(changes) + 1)
        ]
        tried = self._try(singles)
        several = product(*(self._promising(i) for i in range(len(self._steps))))
        tried += self._try(
            [combination for combination in several if combination not in self._known]
        )
        finalists = [c for c in self._close_to_best(tried) if self._helps(c, self._nothing)]
        finalists = finalists[:FINALISTS]
        self._best = min([self._nothing, *finalists], key=lambda c: self._complete(c).loss)
        found = (self._weigh(index) for index in range(len(self._steps)))
        return [step for step in found if step is not None]

    def _promising(self, index: int) -> list[int]:
        """Return the choices of a step to combine with others: none, and its changes but losers.

        Those help by themselves on no average, or are sure to be worse than another of the step.
        """
        changes = range(1, len(self._steps[index]) + 1)
        alone = {self._alone(index, choice): choice for choice in changes}
        known = [combination for combination in alone if combination in self._known]
        helpful = [combination for combination in known if self._helps(combination, self._nothing)]
        return [0, *(alone[combination] for combination in self._close_to_best(helpful))]

    def _helps(self, combination: Combination, other: Combination) -> bool:
        """Whether one has less loss than another on the first half, by however little."""
        return float(np.mean(self._losses(combination))) < float(np.mean(self._losses(other)))

    def _close_to_best(self, combinations: Sequence[Combination]) -> list[Combination]:
        """Return those that the best of them is not sure to beat on the first half, best first."""
        ranked = sorted(combinations, key=lambda c: float(np.mean(self._losses(c))))
        return [c for c in ranked if not self._compare_halves("", c, ranked[0]).difference.is_sure]

    def _compare_halves(self, name: str, before: Combination, after: Combination) -> Step:
        return Step(name, compare_losses(self._losses(before), self._losses(after)))

    def _losses(self, combination: Combination) -> Losses:
        """Return the losses of a trial on the samples that all trials are judged on."""
        fewest = min(losses.size for losses in self._first.values())
        return self._first[combination][:fewest]

    def _alone(self, index: int, choice: int) -> Combination:
        return (*self._nothing[:index], choice, *self._nothing[index + 1 :])

    def _weigh(self, index: int) -> Step | None:
        """Hold the best against the same without this step, or with it where it has none."""
        if self._best[index]:
            without = self._with(index, 0)
            if without not in self._known:
                return None
            return self._keep_better(index, without, self._best)
        changed = [self._with(index, n + 1) for n in range(len(self._steps[index]))]
        known = [combination for combination in changed if combination in self._known]
        helpful = [combination for combination in known if self._helps(combination, self._best)]
        if not helpful:
            return self._note_loser(index, known)
        other = min(helpful, key=lambda combination: self._complete(combination).loss)
        return self._keep_better(index, self._best, other)

    def _note_loser(self, index: int, combined: Sequence[Combination]) -> Step | None:
        """Return what a step does that helps neither with the best nor, if untried so, alone."""
        choices = range(1, len(self._steps[index]) + 1)
        alone = [c for n in choices if (c := self._alone(index, n)) in self._known]
        before, tried = (self._best, combined) if combined else (self._nothing, alone)
        if not tried:
            return None
        after = min(tried, key=lambda c: float(np.mean(self._losses(c))))
        return self._compare_halves(self._steps[index][after[index] - 1].name, before, after)

    def _keep_better(self, index: int, before: Combination, after: Combination) -> Step:
        name = self._steps[index][after[index] - 1].name
        step = _compare(name, self._complete(before), self._complete(after))
        self._best = after if step.kept else before
        return step

    def _with(self, index: int, choice: int) -> Combination:
        return (*self._best[:index], choice, *self._best[index + 1 :])

    def _complete(self, combination: Combination) -> Trial:
        return self._trials.carry_out(self._known[combination], self._halves)

    def _try(self, combinations: Sequence[Combination]) -> list[Combination]:
        """Judge combinations on one half; return those that can be carried out at all."""
        changes = [
            [step[choice - 1] for step, choice in zip(self._steps, one, strict=True) if choice]
            for one in combinations
        ]
        base = self._known[self._nothing].recipe
        recipes = [
            base.replace(**{name: value for change in one for name, value in change.fields.items()})
            for one in changes
        ]
        tried = []
        trials = self._trials.carry_out_all(recipes)
        for combination, made, trial in zip(combinations, changes, trials, strict=True):
            if isinstance(trial, BitwrightError):
                self.refusals.append(_refusal(" and ".join(one.name for one in made), trial))
                continue
            self._known[combination], self._first[combination] = trial, trial.judgement.losses
            tried.append(combination)
        return tried


def default_learning(recipe: Recipe) -> AdaRound:
    """Return how weights learn where the recipe does not say: activation scales too, if low-bit.

    >>> from bitwright.recipe import load_recipe
    >>> default_learning(load_recipe("int8")).learn_activation_scales
    False
    """
    low_bit = recipe.activation.is_integer and recipe.activation.bits < 8
    return AdaRound(learn_activation_scales=low_bit and recipe.scales == "float")


def _compare(name: str, before: Trial, after: Trial) -> Step:
    return Step(name, compare_losses(before.judgement.losses, after.judgement.losses))


def _refusal(name: str, error: Exception) -> str:
    return f"{name}: left out, {str(error).rstrip('.')}"
