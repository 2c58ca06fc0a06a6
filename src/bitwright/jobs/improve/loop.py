"""The loop that improves: propose a change, make the candidate, keep it if it is better.

    trail = improve(start, proposals, make, accept, budget)

    trail begins with make(start)
    for each proposal, for each attempt that it yields:
        if the budget is spent: stop
        after = make(the attempt's change)
        it is the best of the trail from now on, if accept(before, after)
        the proposal hears the trail

A proposal is a generator. It yields one attempt after the other, and each `yield` gives it the
trail with what became of it: what was learnt so far decides what is worth trying next. `make` turns
what an attempt names into a candidate, which has its scores on samples that it was not made from;
`accept` says whether that is better than another. Candidates are frozen, and whoever makes them
keeps them: a proposal may name one again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

Candidate = TypeVar("Candidate")
Change = TypeVar("Change")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Change]):
    """A change to try, and the one that it has to be better than."""

    change: Change
    name: str = ""
    instead_of: Change | None = None
    """None: the best so far."""
    accept: Callable[[Any, Any], bool] | None = None
    """Whether it is better than the other; None: as for all others."""


@dataclass(frozen=True, slots=True)
class Step(Generic[Candidate]):
    """What became of an attempt; without `after` there was nothing to try."""

    name: str
    before: Candidate | None
    after: Candidate | None
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Trail(Generic[Candidate]):
    """The best candidate so far, and all that was tried on the way to it."""

    best: Candidate | None = None
    steps: tuple[Step[Candidate] | str, ...] = ()
    """In words, why an attempt was not made at all."""
    stopped: str | None = None
    """Why the loop ended before it was through."""

    @property
    def current(self) -> Candidate:
        """The best candidate so far, which there is once anything was made."""
        assert self.best is not None
        return self.best

    @property
    def last(self) -> Candidate:
        """The candidate of the last step."""
        step = self.steps[-1]
        assert isinstance(step, Step) and step.after is not None  # asked for behind an attempt
        return step.after

    @property
    def candidates(self) -> list[Candidate]:
        """All that were made in attempts, each once."""
        made = [step.after for step in self.steps if isinstance(step, Step)]
        return list({id(one): one for one in made if one is not None}.values())

    def with_step(self, step: Step[Candidate] | str, best: Candidate | None) -> Trail[Candidate]:
        """Return the trail with one step more, after which this is the best."""
        return replace(self, steps=(*self.steps, step), best=best)


Propose: TypeAlias = Callable[
    [Trail[Candidate]], Generator[Attempt[Any] | Step[Candidate] | str, Trail[Candidate], Any]
]
"""What yields attempts. What it decides without the loop it may yield as a step or in words."""


def improve(
    start: Change | None,
    proposals: Iterable[Propose[Candidate]],
    make: Callable[[Any], Candidate],
    accept: Callable[[Candidate, Candidate], bool],
    budget: Callable[[], str | None] = lambda: None,
    on_best: Callable[[Candidate], None] = lambda candidate: None,
) -> Trail[Candidate]:
    """Return the best of what all proposals try, and the trail to it.

    Args:
        start: what to begin with; None: the first attempt, which is made whatever the budget.
        proposals: asked one after the other, each for the trail so far.
        make: gives the candidate of a change.
        accept: whether the second of two candidates is to take the place of the first.
        budget: why there can be no further attempt; None: there can.
        on_best: hears of each candidate that is the best so far.

    >>> def halve(trail):
    ...     while trail.best > 1:
    ...         trail = yield Attempt(trail.best // 2)
    >>> improve(12, [halve], int, lambda before, after: after < before).best
    1
    """
    trail: Trail[Candidate] = Trail(None if start is None else make(start))
    for propose in proposals:
        attempts = propose(trail)
        wanted = next(attempts, None)
        while wanted is not None:
            if isinstance(wanted, Attempt):
                if trail.best is not None and (reason := budget()) is not None:
                    return replace(trail, stopped=reason)
                other = wanted.instead_of
                before = trail.best if other is None else make(other)
                after = make(wanted.change)
                kept = before is None or (wanted.accept or accept)(before, after)
                step = Step(wanted.name, before, after, kept)
                trail = trail.with_step(step, after if kept else before)
                if kept:
                    on_best(after)
            else:
                trail = trail.with_step(wanted, trail.best)  # what it found out by itself
            try:
                wanted = attempts.send(trail)
            except StopIteration:
                break
    return trail
