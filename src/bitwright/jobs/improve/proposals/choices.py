"""Changes of a recipe, one after the other; those stay that bring outputs closer to float."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeAlias

from bitwright.errors import BitwrightError
from bitwright.jobs.improve.loop import Attempt, Step, Trail
from bitwright.jobs.improve.recipes import Change, Judged, RecipeCandidate, RecipeMaker
from bitwright.jobs.opening import Prepared
from bitwright.recipe import Recipe

Attempts: TypeAlias = Generator[
    Attempt[Judged] | Step[RecipeCandidate] | str, Trail[RecipeCandidate], Any
]
Proposer = Callable[[Recipe, Prepared], Iterator[Change]]
"""Gives the changes of one kind that may help a recipe with a model."""


def choose(maker: RecipeMaker, trail: Trail[RecipeCandidate], *, kind: Proposer) -> Attempts:
    """Try the changes of a kind on the best recipe so far."""
    assert trail.best is not None  # what a level starts with
    recipe = trail.best.recipe
    yield from try_changes(maker, trail, kind(recipe, maker.open(recipe)))


def try_changes(
    maker: RecipeMaker, trail: Trail[RecipeCandidate], changes: Iterable[Change]
) -> Attempts:
    """Try changes of the best recipe so far, each by itself; the best of them stays."""
    assert trail.best is not None
    recipe = trail.best.recipe
    for change in changes:
        wanted = Judged(recipe.replace(**change.fields))
        try:
            maker.make(wanted)
        except BitwrightError as error:  # what goes with no other option of this recipe
            yield f"{change.name}: left out, {str(error).rstrip('.')}"
            continue
        trail = yield Attempt(wanted, change.name, instead_of=_as_it_is(trail))
    assert trail.best is not None
    maker.forget_all_but(trail.best.recipe)


def _as_it_is(trail: Trail[RecipeCandidate]) -> Judged | None:
    """Return the best recipe with weights as they are, if it was judged on other samples so far."""
    best = trail.best
    return None if best is None or best.is_final else Judged(best.recipe, "planned")
