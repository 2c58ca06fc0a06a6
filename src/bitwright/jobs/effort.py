"""Effort levels: steps that bring the model closer to float, tried in order, kept if they help.

low     the recipe as it is
medium  + cross-layer equalization, ranges of least squared error, bias correction
high    + AdaRound on the most sensitive segments

A step is a change of the recipe. It is kept where the loss of the outputs, as `assess.judge` sees
it, falls on samples that nothing was calibrated on; the figure in the result comes from samples
that were not chosen by either. What is kept is a recipe that gives the same model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from bitwright.assess.judge import Difference, Judgement, compare_losses
from bitwright.data import Sample, split_samples
from bitwright.decide.layout.static import lay_out
from bitwright.errors import DataError, ModelError, RecipeError, did_you_mean
from bitwright.jobs.calibration import (
    Calibrated,
    Calibration,
    Evaluation,
    keep_data,
    observe_everything,
)
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.fine_tuning.segment import require_torch
from bitwright.jobs.opening import Prepared, open_model
from bitwright.jobs.output import Planned, assess_model, emit_model
from bitwright.jobs.result import Result
from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES, measure_sensitivity
from bitwright.jobs.smoothing import smooth_activations
from bitwright.jobs.static import plan_static, random_data_notes, round_weights
from bitwright.prepare.matching import clip_limits
from bitwright.recipe import (
    MSE,
    AdaRound,
    CrossLayerEqualization,
    MinMax,
    MinMSE,
    RangeMethod,
    Recipe,
)
from bitwright.recipe.finetuning import LEARNING_OPS

__all__ = ["EFFORTS", "Effort", "Step", "check_effort", "quantize_with_effort"]

Effort = Literal["low", "medium", "high"]
EFFORTS: tuple[str, ...] = get_args(Effort)

MIN_SAMPLES = 8
"""Samples that there must be: some to calibrate with, two to choose by, one to measure with."""
MIN_GAIN = 0.02
"""The share of the loss that a step must take away where a paired bootstrap is not sure of it."""
ERROR_FRACTION = 0.8
"""AdaRound goes to the segments whose weights make this fraction of the error."""
SENSITIVITY_NODES = 64
"""How many nodes are measured, those that lose most on their own."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did to the loss of the outputs on the samples that steps are chosen by."""

    name: str
    difference: Difference

    @property
    def kept(self) -> bool:
        """Whether it is worth keeping: by chance alone it would not have helped so many samples."""
        found = self.difference
        return found.samples > 1 and (found.gain >= MIN_GAIN or found.is_sure)

    def __str__(self) -> str:
        found = self.difference
        before, after = (f"{100 * loss:.3g} %" for loss in (found.before, found.after))
        verdict = "kept" if self.kept else "not kept"
        sure = (
            "" if found.better is None else f" (better in {100 * found.better:.0f} % of resamples)"
        )
        return f"{self.name}: output error {before} -> {after}{sure}, {verdict}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A recipe that was carried out up to a model, and how far its outputs are from float."""

    recipe: Recipe
    prepared: Prepared
    planned: Planned
    judgement: Judgement


def check_effort(effort: str, recipe: Recipe, calibration: Calibration) -> None:
    """Refuse what no effort can do anything about, before any work is done."""
    if effort not in EFFORTS:
        raise RecipeError(f"unknown effort {effort!r}.{did_you_mean(effort, EFFORTS)}")
    if recipe.mode != "static":
        reason = {
            "dynamic": "each run of it measures its own ranges",
            "weight-only": "it has no ranges of activations, and `rounding`, `awq` and `refine` "
            "say how hard its weights are worked on",
        }[recipe.mode]
        raise RecipeError(
            f"effort is for recipes that calibrate activations, and {recipe.name!r} is "
            f"{recipe.mode}: {reason}; leave effort out."
        )
    if effort == "low":
        return
    if recipe.fine_tune is not None and effort == "medium":
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
    if not calibration.holdout:
        raise RecipeError(f"effort {effort!r} chooses by holdout samples; leave out holdout=False.")
    if effort == "high":
        require_torch()


def quantize_with_effort(
    source: Any,
    recipe: Recipe,
    effort: Effort,
    calibration: Calibration,
    *,
    providers: Sequence[str] | None = None,
    compute: Compute = ON_CPU,
) -> Result:
    """Quantize a model, trying the steps of this effort one after the other."""
    check_effort(effort, recipe, calibration)
    if effort == "high":
        require_torch(compute.device)
    search = _Search(source, recipe, calibration, providers, compute)
    for name, changes in STEPS.items():
        search.take_step(name, changes)
    if effort == "high":
        search.take_step("AdaRound", search.fine_tunings)
    return search.finish(effort)


class _Search:
    """The best recipe so far, and how others would do."""

    def __init__(
        self,
        source: Any,
        recipe: Recipe,
        calibration: Calibration,
        providers: Sequence[str] | None,
        compute: Compute,
    ) -> None:
        self._source, self._providers, self._compute = source, providers, compute
        self._learning = recipe.fine_tune
        recipe = recipe.replace(fine_tune=None)
        prepared = open_model(source, recipe, providers)
        kept = keep_data(prepared, calibration)
        _refuse_few(kept.data)
        parts = split_samples(kept.data)
        self._calibration = replace(kept, data=parts.calibration, holdout=False)
        self._selection, self._holdout = (
            list(replace(kept, data=part).open(prepared.model))
            for part in (parts.selection, parts.holdout)
        )
        self._observed: dict[bytes, Calibrated] = {}
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.best = self._carry_out(recipe)
        if (note := self.best.judgement.note) is not None:
            self.notes.append(f"steps of effort are {note}")

    def take_step(self, name: str, changes: Changes) -> None:
        """Carry out the recipes that a step proposes, and go on with the best if it is better."""
        before = self.best
        candidates, refusals = [], []
        for recipe in changes(before.recipe, before.prepared):
            try:
                candidates.append(self._carry_out(recipe))
            except (ModelError, RecipeError) as error:
                # What goes with no other option of this recipe, or runs nowhere.
                refusals.append(f"effort: {name}: left out, {str(error).rstrip('.')}")
        self.notes += refusals
        if not candidates and not refusals:
            self.notes.append(f"effort: {name}: nothing to try")
        if not candidates:
            return
        found = min(candidates, key=lambda candidate: candidate.judgement.loss)
        step = Step(name, compare_losses(before.judgement.losses, found.judgement.losses))
        self.steps.append(step)
        self.notes.append(f"effort: {step}")
        if step.kept:
            self.best = found

    def fine_tunings(self, recipe: Recipe, prepared: Prepared) -> Iterator[Recipe]:
        """Propose to fine-tune the most sensitive segments."""
        if self._learning is None and not recipe.weight.is_integer:
            return
        nodes = self._most_sensitive()
        if nodes:
            learning = msgspec.structs.replace(self._learning or AdaRound(), nodes=nodes)
            corrected = "off" if recipe.bias_correction == "off" else "sequential"
            yield recipe.replace(fine_tune=learning, bias_correction=corrected)

    def _most_sensitive(self) -> tuple[str, ...]:
        """Return the nodes that make most of the error, the worst first."""
        measuring = Measuring(
            samples=self._selection[:SENSITIVITY_SAMPLES],
            providers=self._providers,
            memory_budget=self._calibration.memory_budget,
            progress=self._calibration.progress,
        )
        plan = self.best.planned.plan
        found = measure_sensitivity(self._source, plan, measuring, candidates=SENSITIVITY_NODES)
        learning = [node for node in found.nodes if node.op in LEARNING_OPS]
        ranked = sorted(learning, key=lambda node: node.weight, reverse=True)
        sums = np.cumsum([node.weight for node in ranked])
        if not sums.size or not np.isfinite(sums[-1]) or sums[-1] == 0:
            return ()
        needed = int(np.searchsorted(sums, ERROR_FRACTION * sums[-1])) + 1
        return tuple(node.name for node in ranked[:needed])

    def _carry_out(self, recipe: Recipe) -> _Candidate:
        """Do what `quantize` does, with what was observed already where that still holds."""
        sketches = self._observe(recipe).sketches
        calibration = replace(self._calibration, sketches=sketches)
        decided = plan_static(open_model(self._source, recipe, self._providers), calibration)
        planned = round_weights(decided, calibration, self._compute)
        written = emit_model(decided.prepared, planned)
        result = assess_model(decided.prepared, written, Evaluation(self._selection))
        return _Candidate(recipe, decided.prepared, planned, _judgement(result))

    def _observe(self, recipe: Recipe) -> Calibrated:
        """Return what any range method needs of the model as this recipe prepares it."""
        plain = Recipe(equalize=recipe.equalize, rewrite=recipe.rewrite)
        key = plain.to_json(indent=0).encode()
        if key not in self._observed:
            # Layers without a bias get one for correction, which changes no activation.
            observed = recipe.replace(bias_correction="fast", fine_tune=None)
            prepared = open_model(self._source, observed, self._providers)
            prepared, _ = smooth_activations(prepared, self._calibration)
            layout = lay_out(prepared.model, observed, keep_float=prepared.keep_float)
            self._observed[key] = observe_everything(prepared, layout, self._calibration)
        return self._observed[key]

    def finish(self, effort: str) -> Result:
        """Write the best, and measure it on samples that nothing was chosen by."""
        recipe, planned = self.best.recipe, self.best.planned
        if any(step.kept for step in self.steps):
            recipe = recipe.replace(name=f"{recipe.name}, effort {effort}")
        random = self._calibration.is_random
        plan = msgspec.structs.replace(planned.plan, recipe=recipe, random_data=random)
        plan = plan.with_notes([*random_data_notes(random), *self.notes])
        written = emit_model(self.best.prepared, replace(planned, plan=plan))
        *_, observed = self._observed.values()
        evaluation = Evaluation(self._holdout, unseen=True)
        return assess_model(self.best.prepared, written, evaluation, observed.data)


# Steps --------------------------------------------------------------------------------------

Changes = Callable[[Recipe, Prepared], Iterator[Recipe]]


def _equalizations(recipe: Recipe, prepared: Prepared) -> Iterator[Recipe]:
    """Propose to equalize consecutive weights, also behind clips that would be in the way."""
    if recipe.equalize is not None:
        return
    wanted = recipe.replace(equalize=CrossLayerEqualization(steps=-1, weight_threshold=None))
    other = open_model(prepared.source, wanted, prepared.providers)
    if other.content_fingerprint != prepared.content_fingerprint:
        yield wanted
    freed = wanted.replace(rewrite=msgspec.structs.replace(recipe.rewrite, clip6_to_relu=True))
    clips = recipe.rewrite.clip6_to_relu or recipe.rewrite.clip_to_relu
    limits = (clip_limits(node) for node in prepared.model.graph.all_nodes())
    if not clips and any(found is not None and found == (0, 6) for found in limits):
        yield freed


def _activation_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Recipe]:
    method = recipe.ranges
    channelwise = isinstance(method, MinMax) and method.per_channel
    if recipe.activation.is_integer and not channelwise:
        yield from _with_ranges(recipe, "ranges", method)


def _weight_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Recipe]:
    if recipe.weight.is_integer and not recipe.block_size:
        yield from _with_ranges(recipe, "weight_ranges", recipe.weight_ranges)


def _with_ranges(recipe: Recipe, name: str, method: RangeMethod) -> Iterator[Recipe]:
    best = MinMSE if recipe.scales == "power-of-two" else MSE
    if not isinstance(method, best):
        yield recipe.replace(**{name: best(symmetric=method.symmetric)})


def _bias_corrections(recipe: Recipe, prepared: Prepared) -> Iterator[Recipe]:
    if recipe.bias_correction == "off":
        yield recipe.replace(bias_correction="fast")
        yield recipe.replace(bias_correction="sequential")


STEPS: dict[str, Changes] = {
    "equalization": _equalizations,
    "ranges of activations by least squared error": _activation_ranges,
    "ranges of weights by least squared error": _weight_ranges,
    "bias correction": _bias_corrections,
}


# Measuring ----------------------------------------------------------------------------------


def _refuse_few(samples: Iterable[Sample]) -> None:
    count = sum(1 for _ in islice(samples, MIN_SAMPLES))
    if count < MIN_SAMPLES:
        raise DataError(
            f"effort needs {MIN_SAMPLES} samples, to calibrate with some, choose by others and "
            f"measure with the rest, and there are {count}; give more, or leave effort out."
        )


def _judgement(result: Result) -> Judgement:
    if result.judgement is None or not result.judgement.outputs:
        raise ModelError(
            "no output of this model is a float tensor of a known size, so there is no error to "
            "choose by; leave effort out."
        )
    return result.judgement
