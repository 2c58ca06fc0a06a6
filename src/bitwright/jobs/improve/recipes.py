"""Candidates of recipes: calibrated on one half of the samples, judged on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bitwright.assess.coverage import Coverage, find_coverage
from bitwright.assess.judge import Judge, Judgement
from bitwright.data import Sample, Samples, split_samples
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.errors import BitwrightError, ModelError, RecipeError
from bitwright.graph import carried_model, carry_model, load_model
from bitwright.jobs.calibration import Calibrated, Calibration, observe_everything
from bitwright.jobs.compute import ON_CPU, Compute
from bitwright.jobs.opening import Prepared, open_model, prepare_further
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.smoothing import apply_factors, smooth_activations
from bitwright.jobs.static import Decided, decide_layout, round_weights
from bitwright.plan import QuantPlan, Smoothing
from bitwright.recipe import Recipe
from bitwright.recipe.finetuning import FineTuning
from bitwright.run import run_session
from bitwright.support.wording import counted

__all__ = [
    "FIRST",
    "HALVES",
    "MAX_JUDGED",
    "Change",
    "Judged",
    "RecipeCandidate",
    "RecipeMaker",
    "preparation_key",
]

FIRST = (0,)
HALVES = (0, 1)
MAX_CORRECTED = 32
"""How many samples biases are corrected by: layer by layer each takes two runs of every layer."""
TRIED_CORRECTED = 16
"""How many it is for a candidate, which shows whether they are worth it."""
MAX_JUDGED = 16
"""How many samples of each half results are judged on."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One thing that is done differently, by the fields of the recipe that say so."""

    name: str
    fields: dict[str, Any]


class Judged(NamedTuple):
    """A recipe, and the halves of the samples that it is to be calibrated on and judged by."""

    recipe: Recipe
    halves: Sequence[int] | None = None
    """None: as many as for most candidates."""


@dataclass(frozen=True, slots=True)
class RecipeCandidate:
    """A recipe, and how far its outputs are from float on what it was not calibrated on."""

    recipe: Recipe
    plan: QuantPlan
    """Of the half that it was calibrated on first."""
    judgement: Judgement

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        """The loss of each sample, those of the first half first."""
        return self.judgement.losses

    @property
    def loss(self) -> float:
        """The mean loss, to compare with that of others on the same samples."""
        return self.judgement.loss


@dataclass(slots=True)
class _Progress:
    """The candidates of one recipe, judged on more and more halves."""

    judge: Judge
    made: list[RecipeCandidate] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was observed of a model, and the factors that smoothed it before."""

    calibrated: Calibrated
    smoothing: Mapping[str, Smoothing]


class RecipeMaker:
    """Makes candidates of recipes, with what was done already where it holds."""

    def __init__(
        self,
        prepared: Prepared,
        kept: Calibration,
        compute: Compute = ON_CPU,
        *,
        halves: Sequence[int] = HALVES,
        means: bool = True,
        learning: FineTuning | None = None,
    ) -> None:
        """Divide data that can be read twice; `prepared` is the model for the recipe to start.

        A candidate is calibrated on each of these halves. `means` says whether any candidate
        corrects biases, `learning` how weights are to learn where a candidate lets them.
        """
        self.prepared, self.learning = prepared, learning
        self._compute = compute
        self._kept, self._engine = kept, kept.engine
        self._wanted = halves
        self._means = means
        self._opened: dict[bytes, Prepared] = {preparation_key(prepared.recipe): prepared}
        self._layouts: dict[bytes, Layout] = {}
        self._seen: dict[tuple[bytes, int], _Seen] = {}
        self._progress: dict[bytes, _Progress] = {}
        self._expected: dict[int, list[Mapping[str, Any]]] = {}
        split = split_samples(kept.data, **({} if kept.holdout else {"most": 0}))
        self.calibration = _of(kept, split.calibration, "all")
        count = sum(1 for _ in split.calibration)
        self.data = f"{counted(count, 'sample')} of {kept.data.description}"
        self._halves = [_of(kept, half, f"half {n}") for n, half in enumerate(split.halves)]
        held = _of(kept, split.holdout, "holdout").open(prepared.model) if kept.holdout else ()
        self.holdout = list(held)
        self.judged = [
            list(replace(half, limit=MAX_JUDGED).open(prepared.model)) for half in self._halves
        ]

    def open(self, recipe: Recipe) -> Prepared:
        """Return the model as this recipe prepares it, before any data is looked at."""
        key = preparation_key(recipe)
        if key not in self._opened:
            given = self.prepared
            before = given.recipe
            same = {"bias_correction": before.bias_correction, "equalize": before.equalize}
            if preparation_key(recipe.replace(**same)) == preparation_key(before):
                self._opened[key] = prepare_further(given, recipe)
            else:
                self._opened[key] = open_model(given.source, recipe, given.providers)
        return replace(self._opened[key], recipe=recipe)

    def forget_all_but(self, recipe: Recipe) -> None:
        """Let go of models and sketches that this recipe has no use for."""
        kept = {preparation_key(recipe), preparation_key(_observed_as(recipe))}
        self._opened = {key: found for key, found in self._opened.items() if key in kept}
        self._layouts = {key: one for key, one in self._layouts.items() if key == _key(recipe)}
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in kept}
        self._progress = {key: one for key, one in self._progress.items() if key == _key(recipe)}

    def make(self, wanted: Judged) -> RecipeCandidate:
        """Calibrate on each half that the recipe did not have yet, and judge on the other."""
        recipe, halves = wanted
        halves = halves or self._wanted
        progress = self._progress.setdefault(
            _key(recipe), _Progress(Judge(self.prepared.reference))
        )
        for half in halves[len(progress.made) :]:
            planned, prepared = self._plan(recipe, half)
            # ONNX Runtime refuses what is wrong with it, and what is kept is checked in the end.
            session = open_quantized(prepared, planned, checked=False).session
            if session is None:
                raise RecipeError(
                    f"models of recipe {recipe.name!r} cannot be run here, and effort "
                    "chooses by their outputs; ask for effort 'low'."
                )
            for sample, expected in self._references(1 - half):
                progress.judge.add(sample, expected, run_session(session, sample))
            judgement = progress.judge.finish()
            if not judgement.outputs:
                raise ModelError(
                    "no output of this model is a float tensor of a known size, so there is no "
                    "error to choose by; leave effort out."
                )
            first = progress.made[0].plan if progress.made else planned.plan
            progress.made.append(RecipeCandidate(recipe, first, judgement))
        return progress.made[len(halves) - 1]

    def make_all(self, recipes: Sequence[Recipe]) -> list[RecipeCandidate | BitwrightError]:
        """Carry out recipes on the first half, each with its candidate or why it has none.

        What was observed is observed once, for all of them; the rest is a task for each.
        """
        if self._engine.is_local or len(recipes) < 2:
            return [self._try_recipe(recipe) for recipe in recipes]
        prepared, kept = self.prepared, self._kept
        shared = (
            carry_model(load_model(prepared.source)),
            prepared.recipe,
            prepared.providers,
            list(kept.data),
            {"holdout": kept.holdout, "memory_budget": kept.memory_budget, "progress": False},
            {"halves": self._wanted, "means": self._means},
        )
        found: list[RecipeCandidate | BitwrightError] = []
        with self._engine.open(_recipe_runner, *shared) as workers:
            for recipe, done in zip(recipes, workers.map(self._tasks(recipes)), strict=True):
                if isinstance(done, _Progress):
                    self._progress[_key(recipe)] = done
                    done = done.made[0]
                found.append(done)
        return found

    def _tasks(self, recipes: Sequence[Recipe]) -> Iterator[tuple[Recipe, _Seen | BitwrightError]]:
        for recipe in recipes:
            try:
                yield recipe, self._see(recipe, 0)
            except (ModelError, RecipeError) as error:
                yield recipe, error

    def _try_recipe(self, recipe: Recipe) -> RecipeCandidate | BitwrightError:
        """Carry out a recipe on the first half; return why, if it cannot be."""
        try:
            return self.make(Judged(recipe, FIRST))
        except (ModelError, RecipeError) as error:
            # What goes with no other option of this recipe, or runs nowhere.
            return error

    def make_elsewhere(self, recipe: Recipe, seen: _Seen) -> _Progress | BitwrightError:
        """Carry out a recipe on the first half by what was observed of it in another process."""
        self._seen[preparation_key(_observed_as(recipe)), 0] = seen
        found = self._try_recipe(recipe)
        return found if isinstance(found, BitwrightError) else self._progress[_key(recipe)]

    def _references(self, half: int) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
        """Yield the samples of a half to judge by, with what float makes of them."""
        samples = self.judged[half]
        if half not in self._expected:
            session = self.prepared.reference_session
            self._expected[half] = [run_session(session, sample) for sample in samples]
        return zip(samples, self._expected[half], strict=True)

    def decide(self, recipe: Recipe) -> Decided:
        """Return the plan of the first half, before anything is rounded by data."""
        return self._decide(recipe, self._see(recipe, 0))

    def coverage(self, recipe: Recipe) -> Coverage | None:
        """Return what the runtime computes in integers of the model that a recipe gives, if any."""
        try:
            rounding = self.prepared.recipe.rounding  # kernels do not depend on it
            plain = recipe.replace(bias_correction="off", gain_correction=False, rounding=rounding)
            planned, prepared = self._plan(plain, 0)
            written = open_quantized(prepared, planned, checked=False)
        except (ModelError, RecipeError):
            return None
        return find_coverage(written.model, self.judged[0][0], providers=prepared.providers)

    def finish(self, recipe: Recipe) -> tuple[Prepared, Planned]:
        """Carry out a recipe with all samples but the holdout."""
        alone = recipe.equalizes_by_data  # by factors of all samples, not of each half
        parts = [self._see(recipe, half) for half in HALVES if not alone]
        seen = self._observe(recipe, self.calibration) if alone else _merge(parts)
        decided = self._decide(recipe, seen)
        return decided.prepared, self._round(decided, self.calibration, MAX_CORRECTED)

    def _plan(self, recipe: Recipe, half: int) -> tuple[Planned, Prepared]:
        decided = self._decide(recipe, self._see(recipe, half))
        # Second moments need as many samples as they get.
        most = MAX_CORRECTED if recipe.rounding == "gptq" else TRIED_CORRECTED
        return self._round(decided, self._halves[half], most), decided.prepared

    def _decide(self, recipe: Recipe, seen: _Seen) -> Decided:
        if seen.smoothing:  # by factors of these samples, and so another model
            prepared = apply_factors(self.open(recipe), seen.smoothing)
            layout = lay_out(prepared.model, recipe, keep_float=prepared.keep_float)
        else:
            prepared, layout = self._lay_out(recipe)
        plan = decide_layout(prepared, layout, seen.calibrated)
        plan = msgspec.structs.replace(plan, smoothing=dict(seen.smoothing))
        return Decided(prepared, seen.calibrated, plan)

    def _lay_out(self, recipe: Recipe) -> tuple[Prepared, Layout]:
        """Return the model as this recipe prepares it with its layout, which all samples share."""
        prepared, key = self.open(recipe), _key(recipe)
        if key not in self._layouts:
            self._layouts[key] = lay_out(prepared.model, recipe, keep_float=prepared.keep_float)
        return prepared, self._layouts[key]

    def _round(self, decided: Decided, calibration: Calibration, most: int) -> Planned:
        if decided.plan.recipe.fine_tune is None:
            calibration = replace(calibration, limit=most)
        return round_weights(decided, calibration, self._compute)

    def _see(self, recipe: Recipe, half: int) -> _Seen:
        """Return what any range method needs of the model as this recipe prepares it."""
        key = (preparation_key(_observed_as(recipe)), half)
        if key not in self._seen:
            self._seen[key] = self._observe(recipe, self._halves[half])
        return self._seen[key]

    def _observe(self, recipe: Recipe, calibration: Calibration) -> _Seen:
        # With all nodes that the recipe to start with selects: others only leave some of them out.
        recipe = _observed_as(recipe).replace(select=self.prepared.recipe.select)
        prepared, layout, factors = smooth_activations(*self._lay_out(recipe), calibration)
        found = observe_everything(prepared, layout, calibration, means=self._means)
        return _Seen(found, factors)


def _recipe_runner(
    source: Any,
    recipe: Recipe,
    providers: Sequence[str] | None,
    samples: Sequence[Sample],
    reading: Mapping[str, Any],
    making: Mapping[str, Any],
) -> Callable[[tuple[Recipe, _Seen | BitwrightError]], _Progress | BitwrightError]:
    """Return what carries out recipes elsewhere, with what was observed for them."""
    prepared = open_model(carried_model(source), recipe, providers)
    kept = Calibration(samples, **reading).keep(prepared.model)
    maker = RecipeMaker(prepared, kept, **making)

    def run(task: tuple[Recipe, _Seen | BitwrightError]) -> _Progress | BitwrightError:
        tried, seen = task
        return seen if isinstance(seen, BitwrightError) else maker.make_elsewhere(tried, seen)

    return run


def _of(calibration: Calibration, part: Samples, name: str) -> Calibration:
    identity = f"{calibration.identity}, {name}"
    return replace(calibration, data=part, holdout=False, identity=identity)


# Of overrides only ranges are tried.
_WITHOUT_PREPARATION = (
    "ranges weight_ranges rounding gain_correction fine_tune select overrides".split()
)


def _key(recipe: Recipe) -> bytes:
    return recipe.to_json(indent=0).encode()


def preparation_key(recipe: Recipe) -> bytes:
    """Return what tells recipes apart that prepare another model."""
    fields = msgspec.json.decode(recipe.to_json(indent=0))
    for name in _WITHOUT_PREPARATION:
        fields.pop(name, None)
    fields["bias_correction"] = recipe.bias_correction != "off"
    return msgspec.json.encode(fields, order="sorted")


def _observed_as(recipe: Recipe) -> Recipe:
    # Layers without a bias get one for correction, which changes no activation.
    return recipe.replace(bias_correction="fast", gain_correction=False, fine_tune=None)


def _merge(parts: Sequence[_Seen]) -> _Seen:
    one, other = (part.calibrated for part in parts)
    names = one.sketches.keys() & other.sketches.keys()
    sketches = {name: one.sketches[name] | other.sketches[name] for name in sorted(names)}
    return _Seen(replace(one, sketches=sketches), {})
