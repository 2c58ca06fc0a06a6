"""Candidates of recipes: calibrated on three folds of the samples, judged on the fourth."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.assess import Coverage, FloatOutputs, Noise, find_coverage
from bitwright.data import Samples, split_samples
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.static import lay_out
from bitwright.decide.planner import with_ranges
from bitwright.errors import BitwrightError, ModelError
from bitwright.jobs.calibration import Calibrated, Calibration, observe_everything
from bitwright.jobs.improve.loop import Attempt, Step, Trail
from bitwright.jobs.improve.simulation import Simulation
from bitwright.jobs.opening import ON_CPU, Compute, Prepared, open_model, prepare_further
from bitwright.jobs.output import Planned, open_quantized
from bitwright.jobs.smoothing import apply_factors, smooth_activations
from bitwright.jobs.static import Decided, decide_layout, round_weights
from bitwright.observe import TensorSketch
from bitwright.plan import QuantPlan, Smoothing
from bitwright.recipe import FineTuning, MinMax, Recipe
from bitwright.support import F64, counted

MAX_CORRECTED = 8
"""How many samples biases are corrected by."""
MAX_JUDGED = 4
"""How many samples of each fold are judged, by the ranges of the three others."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One thing that is done differently, by the fields of the recipe that say so."""

    name: str
    fields: dict[str, Any]


class Judged(NamedTuple):
    """A recipe, and how it is to be judged."""

    recipe: Recipe
    how: Literal["folds", "planned", "rounded"] = "rounded"
    """By ranges of three folds on the fourth, each in turn; or by the ranges of all, which ship, on
    the last fold: with weights as they are, or rounded and corrected by the other folds."""


@dataclass(frozen=True, slots=True)
class RecipeCandidate:
    """A recipe, and how far its outputs are from float on samples that it was not made from."""

    recipe: Recipe
    prepared: Prepared
    planned: Planned
    """By the ranges of all samples but the holdout."""
    losses: F64
    """Noise over signal of each sample, in dB: lower is better."""
    is_final: bool = False
    """Whether it was judged as it can be written."""

    @property
    def plan(self) -> QuantPlan:
        """What was decided."""
        return self.planned.plan

    @property
    def loss(self) -> float:
        """The mean over samples, to compare with that of others on the same ones."""
        return float(np.mean(self.losses))


class _Seen:
    """What was observed of a model, fold by fold, and the factors that smoothed it before."""

    def __init__(self, folds: Sequence[Calibrated], smoothing: Mapping[str, Smoothing]) -> None:
        self.folds, self.smoothing = folds, smoothing
        self._merged: dict[int | None, dict[str, TensorSketch]] = {}

    def sketches(self, without: int | None = None) -> dict[str, TensorSketch]:
        """Return the sketches of all folds, or of all but one, merged; ranges are kept in them."""
        if without not in self._merged:
            last = len(self.folds) - 1
            if without is None:
                parts = [self.sketches(last), self.folds[last].sketches]
            else:
                parts = [fold.sketches for n, fold in enumerate(self.folds) if n != without]
            names = sorted(set.intersection(*({*part} for part in parts)))
            self._merged[without] = {
                name: reduce(or_, (part[name] for part in parts)) for name in names
            }
        return self._merged[without]


class RecipeMaker:
    """Makes candidates of recipes, with what was done already where it holds."""

    def __init__(
        self,
        prepared: Prepared,
        kept: Calibration,
        compute: Compute = ON_CPU,
        *,
        learning: FineTuning | None = None,
    ) -> None:
        """Divide data that can be read twice; `prepared` is the model for the recipe to start.

        `learning` says how weights are to learn where a candidate lets them.
        """
        self.prepared, self.learning = prepared, learning
        self._compute = compute
        self._opened: dict[bytes, Prepared] = {preparation_key(prepared.recipe): prepared}
        self._layouts: dict[tuple[bytes, int], tuple[ir.Model, Layout]] = {}
        self._seen: dict[bytes, _Seen] = {}
        self._made: dict[tuple[bytes, str], RecipeCandidate] = {}
        self._simulated: tuple[bytes, Prepared, Planned, Simulation] | None = None
        split = split_samples(kept.data, **({} if kept.holdout else {"most": 0}))
        self.calibration = _of(kept, split.calibration, "all")
        count = sum(1 for _ in split.calibration)
        self.data = f"{counted(count, 'sample')} of {kept.data.description}"
        self._folds = [_of(kept, fold, f"fold {n}") for n, fold in enumerate(split.folds)]
        self._but_last = _of(kept, split.but_last, "all but the last fold")
        held = _of(kept, split.holdout, "holdout").open(prepared.model) if kept.holdout else ()
        self.holdout = list(held)
        self.judged = [
            list(replace(fold, limit=MAX_JUDGED).open(prepared.model)) for fold in self._folds
        ]
        self._noise = Noise(prepared.reference)
        self._expected: dict[int, list[FloatOutputs]] = {}

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
        self._seen = {key: seen for key, seen in self._seen.items() if key in kept}
        self._layouts.clear()

    def make(self, wanted: Judged) -> RecipeCandidate:
        """Carry a recipe out, and judge it on samples that it was not made from."""
        key = _key(wanted.recipe), wanted.how
        if key not in self._made:
            self._made[key] = self._make(*wanted)
        return self._made[key]

    def _make(self, recipe: Recipe, how: str) -> RecipeCandidate:
        seen, last = self._see(recipe), len(self.judged) - 1
        if how == "rounded":
            decided = self.decide(recipe)
            planned = self._round(decided, self._but_last)
            if planned.constants or planned.plan.weight_gains:
                simulation = Simulation(decided.prepared, planned)
            else:
                *_, simulation = self._simulate(recipe)
            losses = np.array(self._judge(last, simulation, planned.plan))
            return RecipeCandidate(recipe, decided.prepared, planned, losses, is_final=True)
        prepared, base, simulation = self._simulate(recipe)
        layout = self._lay_out(prepared, _observed_as(recipe))
        found = []
        for fold in range(last + 1) if how == "folds" else (last,):
            sketches = seen.sketches(fold if how == "folds" else None)
            plan = with_ranges(base.plan, layout, sketches, recipe)
            found += self._judge(fold, simulation, plan)
        if how == "planned":
            decided = self.decide(recipe)
            prepared, base = decided.prepared, Planned(decided.plan)
        return RecipeCandidate(recipe, prepared, base, np.array(found), is_final=how == "planned")

    def _judge(self, fold: int, simulation: Simulation, plan: QuantPlan) -> list[float]:
        """Return the noise over signal of each sample of a fold."""
        if fold not in self._expected:
            session, keep = self.prepared.reference_session, self._noise.keep
            self._expected[fold] = [
                keep(sample, session.run(sample)) for sample in self.judged[fold]
            ]
        pairs = zip(self._expected[fold], self.judged[fold], strict=True)
        found = [
            self._noise.decibels(expected, simulation.run(plan, sample))
            for expected, sample in pairs
        ]
        if not all(self._expected[fold]):
            raise ModelError(
                "no output of this model is a float tensor of a known size, so there is no "
                "error to choose by; leave effort out."
            )
        return found

    def _simulate(self, recipe: Recipe) -> tuple[Prepared, Planned, Simulation]:
        """Return what runs plans of a recipe that differ in ranges of activations and biases."""
        key = _key(_observed_as(recipe).replace(ranges=MinMax(), overrides={}))
        if self._simulated is None or self._simulated[0] != key:
            # Its own ranges are of no account.
            decided = self.decide(_observed_as(recipe).replace(ranges=MinMax()))
            planned = Planned(decided.plan)
            simulation = Simulation(decided.prepared, planned)
            self._simulated = key, decided.prepared, planned, simulation
        return self._simulated[1:]

    def decide(self, recipe: Recipe) -> Decided:
        """Return the plan by the ranges of all samples, before anything is rounded by data."""
        seen, prepared = self._see(recipe), self.open(recipe)
        if seen.smoothing:  # by factors of these samples, and so another model
            prepared = apply_factors(prepared, seen.smoothing)
        calibrated = replace(seen.folds[0], sketches=seen.sketches())
        plan = decide_layout(prepared, self._lay_out(prepared, recipe), calibrated)
        plan = msgspec.structs.replace(plan, smoothing=dict(seen.smoothing))
        return Decided(prepared, calibrated, plan)

    def coverage(self, recipe: Recipe) -> Coverage | None:
        """Return what the runtime computes in integers of the model that a recipe gives, if any."""
        try:
            rounding = self.prepared.recipe.rounding  # kernels do not depend on it
            plain = recipe.replace(bias_correction="off", gain_correction=False, rounding=rounding)
            decided = self.decide(plain)
            written = open_quantized(decided.prepared, Planned(decided.plan), checked=False)
        except BitwrightError:  # some tensors are observed only as others of the first recipe
            return None
        model, providers = written.model, decided.prepared.providers
        return find_coverage(model, self.judged[-1][0], providers=providers)

    def finish(self, recipe: Recipe) -> tuple[Prepared, Planned]:
        """Carry out a recipe with all samples but the holdout."""
        decided = self.decide(recipe)
        return decided.prepared, self._round(decided, self.calibration)

    def _lay_out(self, prepared: Prepared, recipe: Recipe) -> Layout:
        """Return the layout of a model, which range methods share."""
        key = _key(recipe.replace(ranges=MinMax())), id(prepared.model)
        if key not in self._layouts:
            layout = lay_out(prepared.model, recipe, keep_float=prepared.keep_float)
            self._layouts[key] = prepared.model, layout
        return self._layouts[key][1]

    def _round(self, decided: Decided, calibration: Calibration) -> Planned:
        recipe = decided.plan.recipe
        if recipe.fine_tune is None and recipe.rounding != "gptq":
            calibration = replace(calibration, limit=MAX_CORRECTED)
        return round_weights(decided, calibration, self._compute)

    def _see(self, recipe: Recipe) -> _Seen:
        """Return what any range method needs of the model as this recipe prepares it."""
        key = preparation_key(_observed_as(recipe))
        if key not in self._seen:
            # With all nodes that the first recipe selects: others only leave some of them out.
            wider = _observed_as(recipe).replace(select=self.prepared.recipe.select)
            prepared = self.open(wider)
            layout = self._lay_out(prepared, wider)
            smoothed, layout, factors = smooth_activations(prepared, layout, self.calibration)
            means = recipe.bias_correction == "fast"
            folds = observe_everything(smoothed, layout, self._folds, means=means)
            self._seen[key] = _Seen(folds, factors)
        return self._seen[key]


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
    fields.get("place", {}).pop("noise_price", None)
    return msgspec.json.encode(fields, order="sorted")


def _observed_as(recipe: Recipe) -> Recipe:
    # Layers without a bias get one for correction, which changes no activation.
    return recipe.replace(bias_correction="fast", gain_correction=False, fine_tune=None)


# Changes of a recipe, one after the other; those stay that bring outputs closer to float -------


Attempts: TypeAlias = Generator[
    Attempt[Judged] | Step[RecipeCandidate] | str, Trail[RecipeCandidate], Any
]
Proposer = Callable[[Recipe, Prepared], Iterator[Change]]
"""Gives the changes of one kind that may help a recipe with a model."""


def choose(maker: RecipeMaker, trail: Trail[RecipeCandidate], *, kind: Proposer) -> Attempts:
    """Try the changes of a kind on the best recipe so far."""
    recipe = trail.current.recipe
    yield from try_changes(maker, trail, kind(recipe, maker.open(recipe)))


def try_changes(
    maker: RecipeMaker, trail: Trail[RecipeCandidate], changes: Iterable[Change]
) -> Attempts:
    """Try changes of the best recipe so far, each by itself; the best of them stays."""
    recipe = trail.current.recipe
    for change in changes:
        wanted = Judged(recipe.replace(**change.fields))
        try:
            maker.make(wanted)
        except BitwrightError as error:  # what goes with no other option of this recipe
            yield f"{change.name}: left out, {str(error).rstrip('.')}"
            continue
        trail = yield Attempt(wanted, change.name, instead_of=_as_it_is(trail))
    maker.forget_all_but(trail.current.recipe)


def _as_it_is(trail: Trail[RecipeCandidate]) -> Judged | None:
    """Return the best recipe with weights as they are, if it was judged on other samples so far."""
    best = trail.best
    return None if best is None or best.is_final else Judged(best.recipe, "planned")
