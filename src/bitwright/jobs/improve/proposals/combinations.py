"""All combinations of some changes of a recipe, of which the best is kept.

Each change is tried alone first, on the first half of the samples, and combined with others where
that helps. Of the best combinations, judged on both halves, the one of least loss is taken, less
what it is no better for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from bitwright.assess.judge import compare_losses
from bitwright.errors import BitwrightError
from bitwright.jobs.improve.loop import Attempt, Step, Trail
from bitwright.jobs.improve.recipes import FIRST, Change, Judged, RecipeCandidate, RecipeMaker
from bitwright.jobs.opening import Prepared
from bitwright.recipe import Recipe

__all__ = ["Attempts", "Proposer", "combine", "left_out", "try_combinations"]

FINALISTS = 4
"""How many combinations, the best on one half of the samples, are judged on the other, too."""

Attempts: TypeAlias = Generator[
    Attempt[Judged] | Step[RecipeCandidate] | str, Trail[RecipeCandidate], Any
]
Proposer = Callable[[Recipe, Prepared], Iterator[Change]]
"""Gives the changes of one kind that may help a recipe with a model."""
Combination = tuple[Change | None, ...]
"""For each kind, which of its changes is made, if any."""


def combine(
    maker: RecipeMaker,
    trail: Trail[RecipeCandidate],
    *,
    kinds: Mapping[str, Proposer],
    halves: Sequence[int] | None = None,
) -> Attempts:
    """Try all combinations of what these kinds of changes have for the best recipe so far.

    `halves` are those to calibrate on and to judge by, if not as for all others.
    """
    assert trail.best is not None  # the recipe as it was given
    recipe = trail.best.recipe
    prepared = maker.open(recipe)
    proposed = {name: list(propose(recipe, prepared)) for name, propose in kinds.items()}
    yield from try_combinations(maker, recipe, proposed, halves)


def try_combinations(
    maker: RecipeMaker,
    recipe: Recipe,
    proposed: Mapping[str, Sequence[Change]],
    halves: Sequence[int] | None = None,
) -> Attempts:
    """Try all combinations of changes of a recipe, which stand under the name of their kind."""
    for name, changes in proposed.items():
        if not changes:
            yield Step(name, None, None)
    grid = _Grid(maker, recipe, list(filter(None, proposed.values())), halves)
    best = yield from grid.choose()
    maker.forget_all_but(best)


def left_out(name: str, error: Exception) -> str:
    """Return why a change was not tried."""
    return f"{name}: left out, {str(error).rstrip('.')}"


class _Grid:
    """Combinations of changes, and what became of them on the first half of the samples."""

    def __init__(
        self,
        maker: RecipeMaker,
        recipe: Recipe,
        kinds: Sequence[Sequence[Change]],
        halves: Sequence[int] | None,
    ) -> None:
        self._maker, self._recipe, self._kinds, self._halves = maker, recipe, kinds, halves
        self._nothing: Combination = (None,) * len(kinds)
        self._first: dict[Combination, RecipeCandidate] = {}
        self._first[self._nothing] = maker.make(Judged(recipe, FIRST))

    def choose(self) -> Generator[Any, Trail[RecipeCandidate], Recipe]:
        """Yield attempts until each change has to show what it is good for; return the best."""
        singles = [
            self._with(self._nothing, index, change)
            for index, changes in enumerate(self._kinds)
            for change in changes
        ]
        tried = yield from self._try(singles)
        several = product(*(self._promising(index) for index in range(len(self._kinds))))
        tried += yield from self._try([one for one in several if one not in self._first])
        finalists = [one for one in self._close_to_best(tried) if self._helps(one, self._nothing)]
        best = min([self._nothing, *finalists[:FINALISTS]], key=self._loss)
        for index in range(len(self._kinds)):
            best = yield from self._weigh(index, best)
        return self._recipe_of(best)

    def _try(self, combinations: Sequence[Combination]) -> Generator[Any, Any, list[Combination]]:
        """Judge combinations on one half; return those that can be carried out at all."""
        tried = []
        made = self._maker.make_all([self._recipe_of(one) for one in combinations])
        for combination, candidate in zip(combinations, made, strict=True):
            if isinstance(candidate, BitwrightError):
                names = " and ".join(change.name for change in combination if change)
                yield left_out(names, candidate)
                continue
            self._first[combination] = candidate
            tried.append(combination)
        return tried

    def _weigh(self, index: int, best: Combination) -> Generator[Any, Any, Combination]:
        """Hold the best against the same without this kind, or with it where it has none."""
        if best[index] is not None:
            without = self._with(best, index, None)
            before, after = without if without in self._first else self._nothing, best
        else:
            known = self._known(best, index)
            helpful = [one for one in known if self._helps(one, best)]
            if not helpful:
                yield from self._note_loser(index, best, known)
                return best
            before, after = best, min(helpful, key=self._loss)
        change = after[index]
        assert change is not None  # one of them has it
        wanted, other = self._judged(after), self._judged(before)
        trail = yield Attempt(wanted, change.name, instead_of=other)
        return after if trail.steps[-1].kept else before

    def _note_loser(
        self, index: int, best: Combination, combined: Sequence[Combination]
    ) -> Iterator[Step[RecipeCandidate]]:
        """Say what a kind does that helps neither with the best nor, if untried so, alone."""
        alone = self._known(self._nothing, index)
        before, tried = (best, combined) if combined else (self._nothing, alone)
        if tried:
            after = min(tried, key=self._first_loss)
            change = after[index]
            assert change is not None  # each of them has one
            yield Step(change.name, self._first[before], self._first[after])

    def _promising(self, index: int) -> list[Change | None]:
        """Return the choices of a kind to combine with others: none, and its changes but losers.

        Those help by themselves on no average, or are sure to be worse than another of the kind.
        """
        alone = self._known(self._nothing, index)
        helpful = [one for one in alone if self._helps(one, self._nothing)]
        return [None, *(one[index] for one in self._close_to_best(helpful))]

    def _known(self, combination: Combination, index: int) -> list[Combination]:
        """Return a combination with each change of a kind, of which it has none, if tried."""
        changed = (self._with(combination, index, change) for change in self._kinds[index])
        return [one for one in changed if one in self._first]

    def _helps(self, combination: Combination, other: Combination) -> bool:
        """Whether one has less loss than another on the first half, by however little."""
        return self._first_loss(combination) < self._first_loss(other)

    def _close_to_best(self, combinations: Sequence[Combination]) -> list[Combination]:
        """Return those that the best of them is not sure to beat on the first half, best first."""
        ranked = sorted(combinations, key=self._first_loss)
        losses = [self._first[one].losses for one in ranked]
        return [
            one
            for one, found in zip(ranked, losses, strict=True)
            if not compare_losses(found, losses[0]).is_sure
        ]

    def _first_loss(self, combination: Combination) -> float:
        return float(np.mean(self._first[combination].losses))

    def _loss(self, combination: Combination) -> float:
        """Return the loss on all halves."""
        return self._maker.make(self._judged(combination)).loss

    def _judged(self, combination: Combination) -> Judged:
        return Judged(self._recipe_of(combination), self._halves)

    def _recipe_of(self, combination: Combination) -> Recipe:
        fields = [change.fields for change in combination if change is not None]
        return self._recipe.replace(**{k: value for one in fields for k, value in one.items()})

    @staticmethod
    def _with(combination: Combination, index: int, change: Change | None) -> Combination:
        return (*combination[:index], change, *combination[index + 1 :])
