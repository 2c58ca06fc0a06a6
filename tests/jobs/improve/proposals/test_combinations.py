"""Of all combinations of some changes the best is kept, less what it is no better for."""

from dataclasses import dataclass
from dataclasses import replace as changed

import numpy as np
import pytest

from bitwright.errors import ModelError
from bitwright.jobs.improve.loop import Step, improve
from bitwright.jobs.improve.proposals.combinations import (
    FINALISTS,
    combine,
    left_out,
    try_combinations,
)
from bitwright.jobs.improve.recipes import FIRST, Change, Judged
from bitwright.jobs.improve.score import is_surely_better

BASE = np.linspace(0.4, 0.6, 16)


@dataclass(frozen=True)
class Recipe:
    a: int = 0
    b: int = 0
    c: int = 0

    def replace(self, **fields):
        return changed(self, **fields)


@dataclass(frozen=True)
class Made:
    recipe: Recipe
    losses: np.ndarray

    @property
    def loss(self):
        return float(self.losses.mean())


class Maker:
    """Loses what a function of the recipe says, on the first half and on both."""

    def __init__(self, loss_of, whole_loss_of=None, refused=()):
        self._loss_of, self._whole = loss_of, whole_loss_of or loss_of
        self._refused = refused
        self.whole, self.explored, self.kept = [], [], []

    def make(self, wanted):
        first = wanted.halves == FIRST
        if not first:
            self.whole.append(wanted.recipe)
        loss = (self._loss_of if first else self._whole)(wanted.recipe)
        return Made(wanted.recipe, BASE * loss)

    def make_all(self, recipes):
        self.explored += recipes
        return [
            ModelError("it runs nowhere.")
            if one in self._refused
            else self.make(Judged(one, FIRST))
            for one in recipes
        ]

    def forget_all_but(self, recipe):
        self.kept.append(recipe)

    def open(self, recipe):
        return recipe


def kinds(**counts):
    """Return so many changes of each field."""
    return {
        name: [Change(f"{name}{n}", {name: n}) for n in range(1, count + 1)]
        for name, count in counts.items()
    }


def tried(maker, proposed, halves=None):
    proposals = [lambda trail: try_combinations(maker, Recipe(), proposed, halves)]
    return improve(Judged(Recipe()), proposals, maker.make, is_surely_better)


def test_changes_that_help_are_combined_and_each_shows_what_it_is_good_for():
    maker = Maker(lambda r: 1 - 0.2 * r.a - 0.3 * r.b)
    trail = tried(maker, kinds(a=1, b=1))
    assert maker.explored == [Recipe(a=1), Recipe(b=1), Recipe(a=1, b=1)]
    assert trail.best.recipe == Recipe(a=1, b=1)
    assert [(step.name, step.before.recipe, step.kept) for step in trail.steps] == [
        ("a1", Recipe(b=1), True),
        ("b1", Recipe(a=1), True),
    ]
    assert maker.kept == [Recipe(a=1, b=1)]


def test_of_two_changes_that_do_the_same_one_is_kept():
    trail = tried(Maker(lambda r: 0.5 if r.a or r.b else 1), kinds(a=1, b=1))
    assert trail.best.recipe in (Recipe(a=1), Recipe(b=1))
    assert sorted(step.kept for step in trail.steps) == [False, True]


def test_a_change_that_helps_only_by_itself_is_weighed_against_the_best():
    losses = {(0, 0): 1.0, (1, 0): 0.6, (0, 1): 0.5, (1, 1): 0.7}
    trail = tried(Maker(lambda r: losses[r.a, r.b]), kinds(a=1, b=1))
    assert trail.best.recipe == Recipe(b=1)
    assert [(step.name, step.kept) for step in trail.steps] == [("a1", False), ("b1", True)]


def test_what_helps_on_one_half_only_is_not_kept():
    maker = Maker(lambda r: 1 - 0.5 * r.a, lambda r: 1 + 0.5 * r.a)
    trail = tried(maker, kinds(a=1))
    assert trail.best.recipe == Recipe()
    [step] = trail.steps
    assert not step.kept and step.after.recipe == Recipe(a=1)


def test_where_halves_are_asked_for_the_others_are_not_judged():
    maker = Maker(lambda r: 1 - 0.5 * r.a, lambda r: 1 + 0.5 * r.a)
    trail = tried(maker, kinds(a=1), FIRST)
    assert trail.best.recipe == Recipe(a=1)
    assert maker.whole == [Recipe()]  # to begin with


def test_the_best_few_are_judged_on_both_halves():
    noise = np.random.default_rng(0).normal(size=(9, 16))
    noise -= noise.mean(axis=1, keepdims=True)
    maker = Maker(lambda r: 1 - 0.2 * (r.a > 0) + 0.3 * noise[r.a])
    tried(maker, kinds(a=8))
    assert len({recipe.a for recipe in maker.whole if recipe.a}) == FINALISTS


def test_what_is_sure_to_lose_is_combined_with_nothing():
    maker = Maker(lambda r: [1, 0.9, 0.5][r.a] - 0.1 * r.b)
    tried(maker, kinds(a=2, b=1))
    assert Recipe(a=2, b=1) in maker.explored
    assert Recipe(a=1, b=1) not in maker.explored


def test_a_change_that_does_not_help_is_told_with_what_it_does():
    trail = tried(Maker(lambda r: 1 + 0.1 * r.a - 0.5 * r.b), kinds(a=2, b=1))
    loser = trail.steps[0]
    assert (loser.name, loser.kept) == ("a1", False)
    assert (loser.before.recipe, loser.after.recipe) == (Recipe(), Recipe(a=1))


def test_without_changes_there_is_nothing_to_try():
    trail = tried(Maker(lambda r: 1), kinds(a=0, b=1))
    assert trail.steps[0] == Step("a", None, None)
    assert trail.best.recipe == Recipe()


def test_what_cannot_be_made_is_left_out_with_the_reason():
    maker = Maker(lambda r: 1 - 0.2 * r.a - 0.2 * r.b, refused=[Recipe(a=1)])
    trail = tried(maker, kinds(a=1, b=1))
    assert (
        trail.steps[0]
        == "a1: left out, it runs nowhere"
        == left_out("a1", ModelError("it runs nowhere."))
    )
    assert trail.best.recipe == Recipe(b=1)


@pytest.mark.parametrize("helps", [True, False])
def test_changes_are_proposed_for_the_best_recipe_so_far(helps):
    seen = []

    def propose(recipe, prepared):
        seen.append((recipe, prepared))
        yield Change("a", {"a": recipe.a + 1})

    maker = Maker(lambda r: 0.5**r.a if helps else 1)
    proposals = [lambda trail: combine(maker, trail, kinds={"a": propose})] * 2
    trail = improve(Judged(Recipe()), proposals, maker.make, is_surely_better)
    assert trail.best.recipe == Recipe(a=2 if helps else 0)
    assert seen[1][0] == seen[1][1] == Recipe(a=1 if helps else 0)
