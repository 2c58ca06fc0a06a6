"""What tuning tries: plans and their mixtures, in which order, and when that is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from bitwright.jobs.improve.loop import Attempt, Propose, Trail
from bitwright.jobs.improve.mixtures import (
    MAX_POINTS,
    Deadline,
    Mix,
    MixCandidate,
    MixMaker,
    Mixtures,
)
from bitwright.jobs.improve.proposals.mixtures import (
    STEPS_BACK,
    Attempts,
    least_failed,
    least_loss,
    saving_kept,
    search_front,
)
from bitwright.jobs.tuning.plans import TRIMMED, Plans, decide_the_same
from bitwright.jobs.tuning.request import Goal

_T = TypeVar("_T")
_Trying: TypeAlias = Generator[Attempt[Mix], Trail[MixCandidate], _T]

MIN_KEPT = 0.95
"""The share of what int8 saves that a model must keep for the search to end without more effort."""
MIN_FAILED_ERROR = 0.02
"""The share of a plan's error that must be within the limit for more effort to be of use: it lowers
errors to a half or a quarter, not to a fiftieth."""


@dataclass
class PurposeProposals:
    """Proposals for a goal, one after the other, on the plans of a request."""

    maker: MixMaker
    plans: Plans
    goal: Goal
    probe: Callable[[Mixtures], None]
    """Scores weights alone and activations alone."""
    _trail: Trail[MixCandidate] = field(default_factory=Trail)

    @property
    def proposals(self) -> tuple[Propose[MixCandidate], ...]:
        """What the goal asks for: the cheapest model, or the one that loses least in a size."""
        return (self.find_cheapest if self.goal.max_size is None else self.find_least_loss,)

    @property
    def _deadline(self) -> Deadline:
        return self.maker.deadline

    # The cheapest within the limit --------------------------------------------------------------

    def find_cheapest(self, trail: Trail[MixCandidate]) -> Attempts:
        """Try plans as they are, then mixtures of those of more effort, until one saves enough.

        What is slower than float is no result: then it is float.
        """
        self._trail = trail
        first = self.plans.mixtures(self.plans.stages[0], None)
        if self._is_too_slow(first):
            return (yield Attempt(Mix.in_float(first)))
        yield from self._search(first)
        best = self._trail.best
        if best is not None and best.passes and self.maker.is_too_slow(best.mix):
            self._trail = yield Attempt(Mix.in_float(best.mix.mixtures))
        return self._trail

    def _search(self, first: Mixtures) -> _Trying[None]:
        """Try a plan, the same with other ranges, their mixtures, and those of more effort."""
        others = self.plans.stages[1:]
        mixtures, ends = yield from self._plans_as_they_are(first)
        if ends or not self._deadline.has(0):
            return
        if not self._passes(mixtures):
            self.probe(mixtures)
        # Before units fall back to float, their ranges are looked at.
        searched = self._passes(mixtures) or TRIMMED not in others
        if searched and (yield from self._mixtures_of(mixtures)):
            return
        for stage in others:
            if not self._deadline.has(0):
                break
            before, mixtures = mixtures, self.plans.mixtures(stage, mixtures)
            if mixtures.stays_float:
                break
            if decide_the_same(mixtures, before):
                mixtures = before
                if searched:
                    break
            elif (yield from self._plan_as_it_is(mixtures)) or not self._deadline.has(0):
                break
            searched = True
            if (yield from self._mixtures_of(mixtures)):
                break

    def _plans_as_they_are(self, mixtures: Mixtures) -> _Trying[tuple[Mixtures, bool]]:
        """Try a plan, and the same with other ranges; return the last, and if it ends here."""
        ends = yield from self._plan_as_it_is(mixtures)
        known = ends or not self._deadline.has(0) or self._passes(mixtures)
        if known or TRIMMED not in self.plans.stages:
            return mixtures, ends
        better = self._with_better_ranges(mixtures)
        ends = better is not mixtures and (yield from self._plan_as_it_is(better))
        return better, ends

    def _try(self, mix: Mix) -> _Trying[MixCandidate]:
        self._trail = yield Attempt(mix)
        return self._trail.last

    def _plan_as_it_is(self, mixtures: Mixtures) -> _Trying[bool]:
        """Try a plan as it is; whether it is in the limit, and nothing cheaper to be looked for."""
        if self._trail.best is not None and self._is_too_slow(mixtures):
            return False
        found = yield from self._try(Mix(mixtures))
        return found.passes and self._pays(mixtures)

    def _with_better_ranges(self, mixtures: Mixtures) -> Mixtures:
        """Return the plan by whose range method the metric falls least at first.

        The error of the outputs does not tell that: of two methods with as much of it, one may
        lose nothing.
        """
        others = self.plans.with_other_ranges()
        found = [mixtures, *(one for one in others if not decide_the_same(one, mixtures))]
        best, least = mixtures, math.inf
        for one in found if len(found) > 1 else ():
            if not self._deadline.has(self.maker.scorer.first_look_seconds):
                break
            drop = self.maker.first_drop(Mix(one))
            self.maker.report(f"{one.name}: drop {drop.describe()}")
            if drop.mean < least:
                best, least = one, drop.mean
            if drop.samples == len(self.maker.scorer) and drop.mean <= self.maker.limit:
                break  # there is no more to know of it
        return best

    def _mixtures_of(self, mixtures: Mixtures) -> _Trying[bool]:
        """Search the mixtures of a plan; return whether more effort is not worth it."""
        passes = self._passes(mixtures)
        self._trail = yield from search_front(self.maker, mixtures, self._trail)
        # More effort is for what this plan must give up: where that is next to nothing, or where
        # next to nothing can be kept of it, it would only take longer.
        keeps = passes or saving_kept(mixtures, self._trail.best) >= MIN_KEPT
        hopeless = least_failed(mixtures, self._trail) < MIN_FAILED_ERROR
        return keeps or hopeless or not self._deadline.has(0)

    # The least loss in a size -------------------------------------------------------------------

    def find_least_loss(self, trail: Trail[MixCandidate]) -> Attempts:
        """Try what loses least in so many bytes, with more effort if that is too much."""
        self._trail, most = trail, self.goal.max_size
        assert most is not None  # it is asked for
        before: Mixtures | None = None
        for stage in self.plans.stages:
            mixtures = self.plans.mixtures(stage, before)
            if before is not None and decide_the_same(mixtures, before):
                break
            self._trail = yield from least_loss(self.maker, mixtures, most)
            if self._trail.last.passes or not self._deadline.has(0):
                break
            if before is None:
                self.probe(mixtures)
            before = mixtures
        return self._trail

    # What is known of a plan --------------------------------------------------------------------

    def _passes(self, mixtures: Mixtures) -> bool:
        """Whether a plan as it is was within the limit."""
        found = self.maker.found(Mix(mixtures))
        return found is not None and found.passes

    def _is_too_slow(self, mixtures: Mixtures) -> bool:
        """Whether the plan as it is gains no speed: then what it loses need not be known."""
        if not self.goal.is_timed or self.goal.keep_quantized:
            return False
        self.maker.cost(Mix(mixtures))
        return mixtures.stays_float or self.maker.is_too_slow(Mix(mixtures))

    def _pays(self, mixtures: Mixtures) -> bool:
        """Whether a plan that is within the limit needs no search for anything cheaper.

        That is for speed: its units are where they are fastest.
        """
        return self.goal.is_timed and not self.maker.is_too_slow(Mix(mixtures))


def planned_evaluations(plans: Plans, goal: Goal) -> int:
    """Return how many models are scored at most."""
    stages = plans.stages
    if goal.max_size is not None:
        return len(stages) + 2 + 1  # one of each plan, two probes, and the end
    if TRIMMED not in stages:
        return searches_at_most(len(stages))
    # The first plan, two other range methods, and the better of them.
    return searches_at_most(len(stages) - 1, tried=4)


def searches_at_most(searched: int, tried: int = 0, points: int = MAX_POINTS) -> int:
    """Return how many models are scored where so many plans are searched.

    Those are two probes, the end, and for each plan that is searched itself, a bisection and the
    steps back; of others that are tried there is one model.
    """
    return searched * (1 + math.ceil(math.log2(points)) + STEPS_BACK) + tried + 2 + 1
