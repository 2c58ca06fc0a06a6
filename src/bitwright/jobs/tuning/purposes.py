"""What tuning tries: plans and their mixtures, in which order, and when that is enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from bitwright.jobs.improve.loop import Attempt, Propose, Trail
from bitwright.jobs.improve.mixtures import (
    BASE,
    MAX_POINTS,
    Clock,
    Mix,
    MixCandidate,
    MixMaker,
    Mixtures,
)
from bitwright.jobs.improve.proposals.mixtures import (
    STEPS_BACK,
    Attempts,
    fastest_units,
    least_failed,
    least_loss,
    saving_kept,
    search_front,
)
from bitwright.jobs.tuning.goal import Goal
from bitwright.jobs.tuning.latency import Timing
from bitwright.jobs.tuning.mixtures import StaticMixtures
from bitwright.jobs.tuning.plans import RANGES, TRIMMED, Plans, decide_the_same

__all__ = ["PurposeProposals", "planned_evaluations", "searches_at_most"]

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
    float_time: Callable[[], Timing]
    """Gives the milliseconds of the float model."""
    probe: Callable[[Mixtures], None]
    """Scores weights alone and activations alone."""
    chosen_before: str = ""
    """The model that an earlier run ended with."""
    _trail: Trail[MixCandidate] = field(default_factory=Trail)

    @property
    def proposals(self) -> tuple[Propose[MixCandidate], ...]:
        """What the goal asks for: the cheapest model, or the one that loses least in a size."""
        return (self.find_cheapest if self.goal.max_size is None else self.find_least_loss,)

    @property
    def _clock(self) -> Clock:
        return self.maker.clock

    # The cheapest within the limit --------------------------------------------------------------

    def find_cheapest(self, trail: Trail[MixCandidate]) -> Attempts:
        """Try plans as they are, then mixtures of those of more effort, until one saves enough."""
        self._trail = trail
        first, *others = self.plans.stages
        mixtures, ends = yield from self._plans_as_they_are(self.plans.mixtures(first, None))
        if ends or not self._clock.has(0):
            return self._trail
        if not self._passes(mixtures):
            self.probe(mixtures)
        # Before units fall back to float, their ranges are looked at.
        searched = self._passes(mixtures) or TRIMMED not in others
        if searched and (yield from self._mixtures_of(mixtures)):
            return self._trail
        for stage in others:
            if not self._clock.has(0):
                break
            before, mixtures = mixtures, self.plans.mixtures(stage, mixtures)
            if decide_the_same(mixtures, before):
                mixtures = before
                if searched:
                    break
            elif (yield from self._plan_as_it_is(mixtures)) or not self._clock.has(0):
                break
            searched = True
            if (yield from self._mixtures_of(mixtures)):
                break
        return self._trail

    def _plans_as_they_are(self, mixtures: Mixtures) -> _Trying[tuple[Mixtures, bool]]:
        """Try what needs no errors of units; return the last plan, and if it ends here.

        That is a plan as it is, and with its units as they are fastest.
        """
        low = self.plans.stages[0] == "low"
        slow = self._is_slower_than_float(mixtures)
        if slow:
            ends = yield from self._fastest_units(mixtures)
        else:
            ends = yield from self._plan_as_it_is(mixtures)
            if ends:
                yield from self._plan_as_before(mixtures)
        if ends or not self._clock.has(0) or self._passes(mixtures) or not low:
            return mixtures, ends
        if TRIMMED in self.plans.stages:
            first, mixtures = mixtures, self._with_better_ranges(mixtures)
            if slow and mixtures is first:
                return mixtures, False
        if (yield from self._fastest_units(mixtures)):
            return mixtures, True
        # With more units quantized it will hardly lose less, unless its first samples say so.
        best, as_it_is = self._trail.best, Mix(mixtures)
        if best is None or self.maker.first_drop(as_it_is).mean > best.score.drop.mean:
            return mixtures, False
        return mixtures, (yield from self._plan_as_it_is(mixtures))

    def _try(self, mix: Mix) -> _Trying[MixCandidate]:
        self._trail = yield Attempt(mix)
        return self._trail.last

    def _plan_as_it_is(self, mixtures: Mixtures) -> _Trying[bool]:
        """Try a plan as it is; whether it is in the limit, and nothing cheaper to be looked for."""
        if self._trail.best is not None and self._is_slower_than_float(mixtures):
            return False
        found = yield from self._try(Mix(mixtures))
        return found.passes and self._pays(mixtures)

    def _plan_as_before(self, mixtures: Mixtures) -> _Trying[None]:
        """Try the ranges that an earlier run took: they are to stay if they do as well here.

        It needed them for a smaller drop, and has measured them on unseen samples, too.
        """
        name = self.chosen_before
        if not name.startswith(RANGES) or not self.maker.scorer.knows(name, self.maker.limit):
            return
        for other in self.plans.with_other_ranges():
            if name == f"{other.name}/{BASE}":
                self._trail = yield Attempt(Mix(other), accept=self._does_as_well)

    def _does_as_well(self, before: MixCandidate, after: MixCandidate) -> bool:
        """Whether a model is within the limit, and another does not cost clearly less."""
        costs = [self.maker.known_cost(one.mix) for one in (before, after)]
        usual, cost = (math.nan if one is None else one.value for one in costs)
        return after.passes and not usual < (1 - self.maker.min_saved) * cost

    def _with_better_ranges(self, mixtures: Mixtures) -> Mixtures:
        """Return the plan by whose range method the metric falls least at first.

        The error of the outputs does not tell that: of two methods with as much of it, one may
        lose nothing.
        """
        others = self.plans.with_other_ranges()
        found = [mixtures, *(one for one in others if not decide_the_same(one, mixtures))]
        best, least = mixtures, math.inf
        for one in found if len(found) > 1 else ():
            if not self._clock.has(self.maker.scorer.first_look_seconds):
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
        if not (passes and self.goal.purpose == "speed"):
            mixtures.measure_errors()
        self._trail = yield from search_front(self.maker, mixtures, self._trail)
        # More effort is for what this plan must give up: where that is next to nothing, or where
        # next to nothing can be kept of it, it would only take longer.
        keeps = passes or saving_kept(mixtures, self._trail.best) >= MIN_KEPT
        hopeless = least_failed(mixtures, self._trail) < MIN_FAILED_ERROR
        return keeps or hopeless or not self._clock.has(0)

    def _fastest_units(self, mixtures: Mixtures) -> _Trying[bool]:
        """Try the model with all units as they are fastest; whether it is within the limit."""
        if not isinstance(mixtures, StaticMixtures) or self.goal.purpose != "speed":
            return False
        self._trail = yield from fastest_units(self.maker, mixtures, self._is_fast_enough)
        return self._trail.last.passes

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
            mixtures.measure_errors()
            self._trail = yield from least_loss(self.maker, mixtures, most)
            if self._trail.last.passes or not self._clock.has(0):
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

    def _is_slower_than_float(self, mixtures: Mixtures) -> bool:
        """Whether the plan as it is gains no speed: then what it loses need not be known."""
        static = isinstance(mixtures, StaticMixtures)
        if self.goal.purpose != "speed" or self.goal.keep_quantized or not static:
            return False
        self.maker.cost(Mix(mixtures))
        return not self._pays(mixtures)

    def _is_fast_enough(self, mix: Mix) -> bool:
        """Whether a model is not clearly slower than float: than nine in ten runs of it."""
        cost = self.maker.known_cost(mix)
        if self.goal.keep_quantized or cost is None:
            return True
        return cost.value <= self.float_time().high

    def _pays(self, mixtures: Mixtures) -> bool:
        """Whether a plan that is within the limit needs no search for anything cheaper.

        That is for speed, unless it is slower than float: then some of its units should be float,
        if they may be.
        """
        cost = self.maker.known_cost(Mix(mixtures))
        if self.goal.purpose != "speed" or cost is None:
            return False
        return self.goal.keep_quantized or cost.value < self.float_time().least


def planned_evaluations(plans: Plans, goal: Goal) -> int:
    """Return how many models are scored at most."""
    stages = plans.stages
    if goal.max_size is not None:
        return len(stages) + 2 + 1  # one of each plan, two probes, and the end
    if TRIMMED not in stages:
        fastest = stages[0] == "low" and goal.purpose == "speed"
        return searches_at_most(len(stages), tried=fastest)
    # The first plan, two other range methods, the better of them, and its cheapest mixture.
    return searches_at_most(len(stages) - 1, tried=5)


def searches_at_most(searched: int, tried: int = 0, points: int = MAX_POINTS) -> int:
    """Return how many models are scored where so many plans are searched.

    Those are two probes, the end, and for each plan that is searched itself, a bisection and the
    steps back; of others that are tried there is one model.
    """
    return searched * (1 + math.ceil(math.log2(points)) + STEPS_BACK) + tried + 2 + 1
