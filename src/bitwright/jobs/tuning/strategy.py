"""Which plans are tried and searched, in which order, and when that is enough."""

from __future__ import annotations

import math
from collections.abc import Callable

from bitwright.jobs.tuning.candidates import Candidates, Made, StaticCandidates
from bitwright.jobs.tuning.evaluation import Evaluator
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import ModelTimes
from bitwright.jobs.tuning.plans import RANGES, TRIMMED, Plans, Stage, decide_the_same, use_errors
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.tuning.result import MetricDrop
from bitwright.jobs.tuning.search import (
    BASE,
    BEST,
    MIN_SAVED,
    Clock,
    Found,
    Search,
    planned_evaluations,
)

__all__ = ["Strategy"]

MIN_KEPT = 0.95
"""The share of what int8 saves that a model must keep for the search to end without more effort."""
MIN_MENDED = 0.02
"""The share of a plan's error that must be within the limit for more effort to be of use: it lowers
errors to a half or a quarter, not to a fiftieth."""


class Strategy:
    """Looks for the cheapest model within a limit, or the one that loses least in so many bytes."""

    def __init__(
        self,
        request: TuneRequest,
        plans: Plans,
        evaluator: Evaluator,
        times: ModelTimes,
        journal: Journal,
        clock: Clock,
        keep_best: Callable[[Found, Made], None],
    ) -> None:
        """Take what makes models, what evaluates and times them, and what writes the best."""
        self._request, self._plans, self._evaluator = request, plans, evaluator
        self._times, self._journal, self._clock = times, journal, clock
        self._keep_best = keep_best
        self._limit, self._chosen_before = math.nan, ""

    @property
    def planned_evaluations(self) -> int:
        """How many models are evaluated at most."""
        stages = self._plans.stages
        if self._request.goal.max_size is not None:
            return len(stages) + 2 + 1  # one of each plan, two probes, and the end
        if TRIMMED not in stages:
            cheapest = stages[0] == "low" and self._request.goal.purpose == "speed"
            return planned_evaluations(len(stages), tried=cheapest)
        # The first plan, two other range methods, the better of them, and its cheapest mixture.
        return planned_evaluations(len(stages) - 1, tried=5)

    def run(self, limit: float) -> Search:
        """Return the last search, which has the best model."""
        self._limit, self._chosen_before = limit, self._journal.get(BEST) or ""
        most = self._request.goal.max_size
        return self._search() if most is None else self._search_within(most)

    def _search(self) -> Search:
        """Try plans as they are, then search those of more effort, until one saves enough."""
        first, *others = self._plans.stages
        search, ends = self._try_plans(first)
        if ends or not self._clock.has(0):
            return search
        if not search.base.passes:
            search.probe()
        # Before units fall back to float, their ranges are looked at.
        searched = search.base.passes or TRIMMED not in others
        if searched and self._search_front(search):
            return search
        for stage in others:
            if not self._clock.has(0):
                return search
            candidates = self._plans.candidates(stage, search.candidates)
            if not decide_the_same(candidates, search.candidates):
                search.add_errors()
                search = self._start(candidates, search)
                if self._test_base(search) or not self._clock.has(0):
                    return search
            elif searched:
                return search
            searched = True
            if self._search_front(search):
                return search
        return search

    def _try_plans(self, first: Stage) -> tuple[Search, bool]:
        """Evaluate what needs no errors of units; return the last search, and if it ends here.

        That is a plan as it is, and with its units as they are fastest.
        """
        search = self._start(self._plans.candidates(first, None), None)
        slow = self._is_slower_than_float(search)
        ends = self._test_cheapest(search) if slow else self._test_base(search)
        if ends and not slow:
            return self._as_before(search), True
        if ends or not self._clock.has(0):
            return search, True
        if search.base.passes or first != "low":
            return search, False
        if TRIMMED in self._plans.stages:
            before, search = search, self._with_better_ranges(search)
            if slow and search is before:
                return search, False
        if self._test_cheapest(search):
            return search, True
        # With more units quantized it will hardly lose less, unless its first samples say so.
        best = search.best
        if best is None or best.tested is None or search.first_drop.mean > best.tested.drop.mean:
            return search, False
        return search, self._test_base(search)

    def _as_before(self, search: Search) -> Search:
        """Return the search of the ranges that an earlier run took, if they do as well here.

        It needed them for a smaller drop, and has measured them on unseen samples, too.
        """
        before = self._chosen_before
        if not before.startswith(RANGES) or not self._evaluator.knows(before, self._limit):
            return search
        for candidates in self._plans.with_other_ranges():
            if before == f"{candidates.name}/{BASE}":
                other = self._start(candidates, search)
                least = MIN_SAVED[self._request.goal.purpose]
                if other.test_base().passes and not _is_cheaper(search.base, other.base, least):
                    other.best = other.base
                    return other
        return search

    def _with_better_ranges(self, search: Search) -> Search:
        """Return the search of the range method by which the metric falls least at first.

        The error of the outputs does not tell that: of two methods with as much of it, one may
        lose nothing.
        """
        found = [search]
        for candidates in self._plans.with_other_ranges():
            if not decide_the_same(candidates, search.candidates):
                found.append(self._start(candidates, search))
        best, least = search, math.inf
        for one in found if len(found) > 1 else ():
            if not self._clock.has(self._evaluator.first_look_seconds):
                break
            drop = one.first_drop
            self._request.report(f"{one.candidates.name}: drop {MetricDrop.of(drop).describe()}")
            if drop.mean < least:
                best, least = one, drop.mean
            if drop.samples == len(self._evaluator) and drop.mean <= self._limit:
                break  # there is no more to know of it
        return best

    def _test_base(self, search: Search) -> bool:
        """Whether a plan as it is is within the limit, and nothing cheaper is to be looked for."""
        if search.best is not None and self._is_slower_than_float(search):
            return False
        return search.test_base().passes and self._pays(search.base)

    def _search_front(self, search: Search) -> bool:
        """Search the mixtures of a plan; return whether more effort is not worth it."""
        passes = search.base.passes
        if not (passes and self._request.goal.purpose == "speed"):
            use_errors(search.candidates)
        search.run()
        # More effort is for what this plan must give up: where that is next to nothing, or where
        # next to nothing can be kept of it, it would only take longer.
        keeps = passes or search.kept >= MIN_KEPT
        return keeps or search.least_failed < MIN_MENDED or not self._clock.has(0)

    def _search_within(self, most: int) -> Search:
        """Look for what loses least in so many bytes, with more effort if that is too much."""
        before: Search | None = None
        for stage in self._plans.stages:
            candidates = self._plans.candidates(
                stage, None if before is None else before.candidates
            )
            if before is not None and decide_the_same(candidates, before.candidates):
                return before
            use_errors(candidates)
            search = self._start(candidates, before)
            if search.run_within(most).passes or not self._clock.has(0):
                return search
            if before is None:
                search.probe()
            before = search
        assert before is not None
        return before

    def _start(self, candidates: Candidates, before: Search | None) -> Search:
        """Begin the search of a plan."""
        search = Search(
            candidates,
            self._evaluator,
            self._journal,
            self._request.goal,
            self._limit,
            self._clock,
            self._request.report,
            self._keep_best,
            self._times.of,
            self._evaluator.knows_any(self._limit) if before is None else before.has_known,
            None if before is None else before.best,
        )
        if before is not None:
            tested = (*before.points, *before.aside)
            search.aside = [one for one in tested if one.tested is not None]
            search.probes = before.probes
        return search

    def _is_slower_than_float(self, search: Search) -> bool:
        """Whether the plan as it is gains no speed: then what it loses need not be known."""
        goal, static = self._request.goal, isinstance(search.candidates, StaticCandidates)
        if goal.purpose != "speed" or goal.keep_quantized or not static:
            return False
        search.measure_cost(search.base)
        return not self._pays(search.base)

    def _test_cheapest(self, search: Search) -> bool:
        """Whether the model with all units as they are fastest is within the limit."""
        static = isinstance(search.candidates, StaticCandidates)
        if not static or self._request.goal.purpose != "speed":
            return False
        return search.test_cheapest(self._is_fast_enough).passes

    def _is_fast_enough(self, found: Found) -> bool:
        """Whether a model is not clearly slower than float: than nine in ten runs of it."""
        cost = found.measured_cost
        if self._request.goal.keep_quantized or cost is None:
            return True
        return cost <= self._times.of_float().high

    def _pays(self, base: Found) -> bool:
        """Whether a plan that is within the limit needs no search for anything cheaper.

        That is for speed, unless it is slower than float: then some of its units should be float,
        if they may be.
        """
        if self._request.goal.purpose != "speed" or base.measured_cost is None:
            return False
        return (
            self._request.goal.keep_quantized or base.measured_cost < self._times.of_float().least
        )


def _is_cheaper(one: Found, other: Found, least: float) -> bool:
    """Whether a model costs so much less than another, as a share of that."""
    cost, usual = one.measured_cost, other.measured_cost
    return cost is not None and usual is not None and cost < (1 - least) * usual
