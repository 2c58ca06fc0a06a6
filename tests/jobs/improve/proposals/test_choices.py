"""Changes of a recipe are tried one after the other, and the best of them stays."""

from dataclasses import dataclass
from dataclasses import replace as changed

import pytest

from bitwright.errors import ModelError
from bitwright.jobs.improve.loop import Attempt, improve
from bitwright.jobs.improve.recipes import Change, Judged, choose, try_changes


@dataclass(frozen=True)
class Recipe:
    a: int = 0
    b: int = 0

    def replace(self, **fields):
        return changed(self, **fields)


@dataclass(frozen=True)
class Made:
    recipe: Recipe
    loss: float
    is_final: bool


class Maker:
    """Loses what a function of the recipe says, and more before weights are rounded."""

    def __init__(self, loss_of, refused=()):
        self._loss_of, self._refused = loss_of, refused
        self.kept, self.asked = [], []

    def make(self, wanted):
        if wanted.recipe in self._refused:
            raise ModelError("it runs nowhere.")
        self.asked.append(wanted)
        final = wanted.how == "rounded"
        return Made(wanted.recipe, self._loss_of(wanted.recipe) + 10 * (not final), final)

    def forget_all_but(self, recipe):
        self.kept.append(recipe)

    def open(self, recipe):
        return recipe


def begin(trail):
    yield Attempt(Judged(Recipe(), "rounded"), "begin")


CHANGES = [Change(f"a{n}", {"a": n}) for n in (1, 2, 3)]


def tried(maker, *proposals):
    given = [begin, *proposals]
    return improve(None, given, maker.make, lambda before, after: after.loss < before.loss)


def test_the_best_of_several_changes_stays():
    maker = Maker(lambda recipe: {0: 5, 1: 3, 2: 4, 3: 2}[recipe.a])
    trail = tried(maker, lambda trail: try_changes(maker, trail, CHANGES))
    assert trail.best.recipe == Recipe(a=3)
    assert [step.kept for step in trail.steps] == [True, True, False, True]
    assert maker.kept == [Recipe(a=3)]


def test_where_nothing_helps_all_stays_as_it_was():
    maker = Maker(lambda recipe: recipe.a)
    trail = tried(maker, lambda trail: try_changes(maker, trail, CHANGES))
    assert trail.best.recipe == Recipe()
    assert maker.kept == [Recipe()]


def test_what_cannot_be_made_is_left_out_with_the_reason():
    maker = Maker(lambda recipe: -recipe.a, refused=[Recipe(a=3)])
    trail = tried(maker, lambda trail: try_changes(maker, trail, CHANGES))
    assert trail.best.recipe == Recipe(a=2)
    assert "a3: left out, it runs nowhere" in trail.steps


@pytest.mark.parametrize("helps", [True, False])
def test_changes_are_proposed_for_the_best_recipe_so_far(helps):
    seen = []

    def kind(recipe, prepared):
        seen.append(recipe)
        return [Change("b1", {"b": 1})]

    maker = Maker(lambda recipe: -recipe.a if helps else recipe.a)
    first = lambda trail: try_changes(maker, trail, CHANGES[:1])  # noqa: E731
    tried(maker, first, lambda trail: choose(maker, trail, kind=kind))
    assert seen == [Recipe(a=int(helps))]


def test_a_recipe_of_which_only_ranges_were_judged_is_judged_anew_beside_the_change():
    maker = Maker(lambda recipe: -recipe.a)

    def ranges(trail):
        yield Attempt(Judged(Recipe(), "folds"), "ranges")

    proposals = [ranges, lambda trail: try_changes(maker, trail, CHANGES[:1])]
    trail = improve(None, proposals, maker.make, lambda before, after: after.loss < before.loss)
    assert Judged(Recipe(), "planned") in maker.asked
    assert trail.best.is_final
