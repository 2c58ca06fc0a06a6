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
from bitwright.jobs.improve.recipes import (
    FIRST,
    Change,
    Judged,
    RecipeCandidate,
    RecipeMaker,
)
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
Combination = tuple[int, ...]
"""For each kind, which of its changes is made, from 1 on; 0: none."""


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
        self._nothing = (0,) * len(kinds)
        self._first = {self._nothing: maker.make(Judged(recipe, FIRST))}

    def choose(self) -> Generator[Any, Trail[RecipeCandidate], Recipe]:
        """Yield attempts until each change has to show what it is good for; return the best."""
        singles = [
            self._alone(index, choice)
            for index, changes in enumerate(self._kinds)
            for choice in range(1, len(changes) + 1)
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
                names = " and ".join(change.name for change in self._changes(combination))
                yield left_out(names, candidate)
                continue
            self._first[combination] = candidate
            tried.append(combination)
        return tried

    def _weigh(self, index: int, best: Combination) -> Generator[Any, Any, Combination]:
        """Hold the best against the same without this kind, or with it where it has none."""
        if best[index]:
            without = self._with(best, index, 0)
            before, after = without if without in self._first else self._nothing, best
        else:
            changed = [self._with(best, index, n + 1) for n in range(len(self._kinds[index]))]
            known = [one for one in changed if one in self._first]
            helpful = [one for one in known if self._helps(one, best)]
            if not helpful:
                yield from self._note_loser(index, best, known)
                return best
            before, after = best, min(helpful, key=self._loss)
        change = self._kinds[index][after[index] - 1]
        wanted, other = self._judged(after), self._judged(before)
        trail = yield Attempt(wanted, change.name, instead_of=other)
        return after if trail.steps[-1].kept else before

    def _note_loser(
        self, index: int, best: Combination, combined: Sequence[Combination]
    ) -> Iterator[Step[RecipeCandidate]]:
        """Say what a kind does that helps neither with the best nor, if untried so, alone."""
        choices = range(1, len(self._kinds[index]) + 1)
        alone = [one for n in choices if (one := self._alone(index, n)) in self._first]
        before, tried = (best, combined) if combined else (self._nothing, alone)
        if tried:
            after = min(tried, key=self._first_loss)
            change = self._kinds[index][after[index] - 1]
            yield Step(change.name, self._first[before], self._first[after])

    def _promising(self, index: int) -> list[int]:
        """Return the choices of a kind to combine with others: none, and its changes but losers.

        Those help by themselves on no average, or are sure to be worse than another of the kind.
        """
        choices = range(1, len(self._kinds[index]) + 1)
        alone = {self._alone(index, choice): choice for choice in choices}
        known = [one for one in alone if one in self._first]
        helpful = [one for one in known if self._helps(one, self._nothing)]
        return [0, *(alone[one] for one in self._close_to_best(helpful))]

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
        fields = [change.fields for change in self._changes(combination)]
        return self._recipe.replace(**{k: value for one in fields for k, value in one.items()})

    def _changes(self, combination: Combination) -> list[Change]:
        pairs = zip(self._kinds, combination, strict=True)
        return [changes[choice - 1] for changes, choice in pairs if choice]

    def _alone(self, index: int, choice: int) -> Combination:
        return self._with(self._nothing, index, choice)

    def _with(self, combination: Combination, index: int, choice: int) -> Combination:
        return (*combination[:index], choice, *combination[index + 1 :])
