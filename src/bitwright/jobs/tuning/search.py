"""The search: the metric along the front, by bisection, and a few steps back to cheaper states."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from bitwright.assess.judge.sequential import Drop
from bitwright.jobs.tuning.candidates import Candidates, Made
from bitwright.jobs.tuning.evaluation import Evaluator, Outcome
from bitwright.jobs.tuning.front import (
    Choice,
    Edge,
    Option,
    add_up,
    find_front,
    find_within,
    thin_front,
)
from bitwright.jobs.tuning.goal import Goal, Purpose
from bitwright.jobs.tuning.journal import Journal
from bitwright.jobs.tuning.latency import Timing
from bitwright.jobs.tuning.result import FallenUnit, FrontPoint, MetricDrop, Probe

__all__ = ["BASE", "BEST", "MIN_SAVED", "Clock", "Found", "Search", "planned_evaluations"]

MAX_POINTS = 12
APART = 0.02
"""Points of the front differ by this share of the whole cost at least."""
STEPS_BACK = 3
"""How many units are tried in a cheaper state again."""
MIN_SAVED: dict[Purpose, float] = {"speed": 0.05, "size": 0.02}
"""The share of the whole cost that a model must save to be worth an evaluation: sizes are exact,
and what a mix of units will take is known to some percent."""
BASE = "base"
BEST = "best"
"""Under which the journal has the name of the model that is on disk."""


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float | None) -> None:
        self._begun, self._seconds = time.monotonic(), seconds
        self.stopped: str | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the job began."""
        return time.monotonic() - self._begun

    def has(self, seconds: float) -> bool:
        """Whether something of this length still fits; if not, the search was cut short."""
        if self._seconds is None or self.elapsed + seconds <= self._seconds:
            return True
        self.stopped = f"the time of {self._seconds:.0f} s is used up"
        return False


def planned_evaluations(searched: int, tried: int = 0, points: int = MAX_POINTS) -> int:
    """Return how many models are evaluated at most.

    Those are two probes, the end, and for each plan that is searched itself, a bisection and the
    steps back; of others that are tried there is one model.

    >>> planned_evaluations(1), planned_evaluations(2), planned_evaluations(2, tried=3)
    (11, 19, 22)
    """
    return searched * (1 + math.ceil(math.log2(points)) + STEPS_BACK) + tried + 2 + 1


@dataclass
class Found:
    """What is known of one model so far."""

    name: str
    candidates: Candidates
    """What makes it: plans of other efforts are other models."""
    states: Mapping[str, str]
    """Units that are not as planned."""
    choice: Choice | None = None
    """Its place on the front; None: as planned, and the front is not known."""
    tested: Outcome | None = None
    measured_cost: float | None = None
    cost_spread: tuple[float, float] | None = None
    refined: bool = False

    @property
    def passes(self) -> bool:
        """Whether it is within the limit."""
        return self.tested is not None and self.tested.verdict == "pass"


@dataclass
class Search:
    """Looks for the cheapest model within a limit."""

    candidates: Candidates
    evaluator: Evaluator
    journal: Journal
    goal: Goal
    limit: float
    clock: Clock
    report: Callable[[str], None] = lambda line: None
    on_best: Callable[[Found, Made], None] = lambda found, made: None
    latency: Callable[[ir.Model], Timing] = lambda model: Timing(math.nan, math.nan, math.nan)
    """Gives the milliseconds of a model, where it is tuned for speed."""
    has_known: bool = False
    """Whether an earlier run evaluated a model that is within the limit."""
    best: Found | None = None
    probes: list[Probe] = field(default_factory=list)
    points: list[Found] = field(default_factory=list)
    aside: list[Found] = field(default_factory=list)
    """What was evaluated and is not on the front."""
    loss_units: tuple[tuple[str, float], ...] = ()
    """The units that make most of the error as planned; empty: it was not measured."""
    _made: tuple[str, Made] | None = None

    @cached_property
    def base(self) -> Found:
        """The plan as it is."""
        base = Found(f"{self.candidates.name}/{BASE}", self.candidates, {})
        self.points = [base]
        return base

    def test_base(self) -> Found:
        """Evaluate the plan as it is."""
        self._test(self.base)
        return self.base

    @property
    def first_drop(self) -> Drop:
        """How far the metric falls with the plan as it is, as the first look has it."""
        return self.evaluator.test(
            self.base.name,
            lambda: self.make(self.base).runnable,
            self.limit,
            first_look=True,
        ).drop

    def test_cheapest(self, pays: Callable[[Found], bool] = lambda found: True) -> Found:
        """Evaluate what costs least, whatever it loses: that may be the plan as it is.

        Units that are faster in float are more accurate there, too: where there are any, this is
        better than the plan in all, and its errors need not be known. The costs of units are
        estimates: where the model as a whole does not pay, all of them are float.
        """
        first = self._front()[0]
        planned = [each[_planned_state(each)].cost for each in self.candidates.options]
        most = sum(planned) - APART * (sum(planned) + self.candidates.fixed)
        if first.states and first.choice is not None and first.choice.cost <= most:
            self.measure_cost(first)
            self.aside.append(first)
        else:
            first = self.base
        if not pays(first):
            first = self._in_float()
            self.aside.append(first)
        self._test(first)
        return first

    def _in_float(self) -> Found:
        """Return the model with all units in float."""
        options = self.candidates.options
        states = tuple(
            next(place for place, one in enumerate(each) if one.state == "float")
            for each in options
        )
        return self._found(add_up(options, states, self.candidates.edges))

    def add_errors(self) -> None:
        """Count the errors of units for models that were tested by their costs alone."""
        options, edges = self.candidates.options, self.candidates.edges
        for found in (*self.points, *self.aside):
            if found.candidates is self.candidates:
                states = None if found.choice is None else found.choice.states
                states = states or tuple(map(_planned_state, options))
                found.choice = add_up(options, states, edges)

    def run(self) -> None:
        """Bisect the front, and step back from what is within the limit."""
        self.loss_units = self.candidates.shares
        tested, self.points = self.points, self._front()
        for base in tested:
            self._place(base)
        self._bisect()
        self._step_back()

    def run_within(self, most: int) -> Found:
        """Evaluate the model that is expected to lose least of those with so many bytes at most.

        Sizes of units are estimates: where the file has more bytes, that much less is spent. Where
        not even the smallest model fits, it is that one.
        """
        self.loss_units = self.candidates.shares
        self.points = self._front()
        options, left = self.candidates.options, most - self.candidates.fixed
        while (choice := find_within(options, left, self.candidates.edges)) is not None:
            found = self._listed(self._found(choice))
            self.measure_cost(found)
            assert found.measured_cost is not None
            if found.measured_cost <= most:
                break
            left = min(choice.cost, left) - (found.measured_cost - most)
        else:
            found = self.points[0]
        self._test(found)
        return found

    def _listed(self, found: Found) -> Found:
        """Return the point of the front that is this model, or put it beside the others."""
        for point in (*self.points, *self.aside):
            if point.name == found.name:
                return point
        self.aside.append(found)
        return found

    def _place(self, base: Found) -> None:
        """Take what is known of the plan as it is over into the front, if that has it."""
        states = tuple(_planned_state(options) for options in self.candidates.options)
        for found in self.points:
            if found.name == base.name:
                found.tested, found.measured_cost = base.tested, base.measured_cost
                found.cost_spread = base.cost_spread
                if self.best is base:
                    self.best = found
                return
        chosen = [o[s] for o, s in zip(self.candidates.options, states, strict=True)]
        cost, error = sum(one.cost for one in chosen), sum(one.error for one in chosen)
        base.choice = Choice(states, cost, error)
        self.aside.append(base)

    # The front --------------------------------------------------------------------------------

    def _front(self) -> list[Found]:
        options, edges = self.candidates.options, self.candidates.edges
        front = find_front(options, edges)
        chosen = thin_front(front, apart=APART, most=MAX_POINTS)
        return [self._found(choice) for choice in chosen]

    def _found(self, choice: Choice, *, refined: bool = False) -> Found:
        states = {
            unit.node: options[state].state
            for unit, options, state in zip(
                self.candidates.units, self.candidates.options, choice.states, strict=True
            )
            if state != _planned_state(options)
        }
        text = ";".join(f"{node}={state}" for node, state in sorted(states.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16] if states else BASE
        name = f"{self.candidates.name}/{digest}"
        return Found(name, self.candidates, states, choice, refined=refined)

    # The metric -------------------------------------------------------------------------------

    def _test(self, found: Found) -> bool:
        """Evaluate a model, if there is time; return whether it is within the limit."""
        if found.tested is not None:
            return found.passes
        ahead = (self.evaluator.sample_seconds or 0.0) * len(self.evaluator) / 8
        # One model is evaluated in any case, or there would be none to return.
        if self.best is not None and not self.clock.has(ahead):
            return False

        runs = self.evaluator.runs
        found.tested = (
            self.evaluator.test_float()
            if self._is_float(found)
            else self.evaluator.test(
                found.name,
                lambda: self.make(found).runnable,
                self.limit,
                has_other=self.has_known or (self.best is not None and self.best.passes),
                may_go_on=self.clock.has,
            )
        )
        if found.tested.verdict == "open":  # no time for all samples: what there is decides
            mean = found.tested.drop.mean
            found.tested = replace(found.tested, verdict="pass" if mean <= self.limit else "fail")
        # How fast a model is that is not wanted is not worth the time.
        if found.passes or self.goal.purpose == "size":
            self.measure_cost(found)
        drop = MetricDrop.of(found.tested.drop).describe()
        self.report(f"{len(found.states)} units changed: drop {drop}, {found.tested.verdict}")
        if self.best is None or self._is_better(found, self.best):
            self.best = found
            if self.evaluator.runs > runs:  # else it is known already: the end will write it
                self.on_best(found, self.make(found))
        return found.passes

    def _is_float(self, found: Found) -> bool:
        """Whether nothing of a model is quantized."""
        units = found.candidates.units if found.states else ()
        return bool(units) and all(found.states.get(unit.node) == "float" for unit in units)

    def make(self, found: Found) -> Made:
        """Make the model of a point; the last one is at hand."""
        if self._made is None or self._made[0] != found.name:
            self._made = (found.name, found.candidates.make(found.states))
        return self._made[1]

    def _is_better(self, found: Found, other: Found) -> bool:
        # Units of two plans were profiled apart, and one of the models may have no units yet.
        same = found.candidates is other.candidates
        profiled = same and None not in (found.choice, other.choice)
        return self.rank(found, profiled=profiled) < self.rank(other, profiled=profiled)

    def rank(self, found: Found, *, profiled: bool = True) -> tuple[bool, float]:
        """Return what the best has least of: those within the limit by cost, others by drop.

        Times are those of the profile, which were measured together: two runs of models, one after
        the other, differ by what else the machine does.
        """
        assert found.tested is not None
        if not found.passes:
            return True, found.tested.drop.mean
        if self.goal.purpose == "speed" and found.choice is not None and profiled:
            return False, found.choice.cost
        return False, math.inf if found.measured_cost is None else found.measured_cost

    def measure_cost(self, found: Found) -> None:
        """Measure what a model costs by itself, with the spread of a time."""
        by_size = self.goal.purpose == "size"
        name = f"cost/{self.goal.purpose}/{found.name}"
        known = self.journal.get(name)
        if known is None:
            made = self.make(found)
            known = float(made.size) if by_size else self.latency(made.model)
            self.journal[name] = known
        if by_size:
            found.measured_cost = known
        else:
            found.measured_cost, *spread = known
            found.cost_spread = (spread[0], spread[1])

    def probe(self) -> None:
        """Evaluate weights alone and activations alone: what cannot be met is told early.

        They choose nothing, so that the samples of the first look will do.
        """
        for name, open_probe in self.candidates.probes().items():
            ahead = (self.evaluator.sample_seconds or 0.0) * len(self.evaluator) / 4
            if not self.clock.has(ahead):
                return
            tested = self.evaluator.test(
                f"{self.candidates.name}-{name}",
                open_probe,
                self.limit,
                first_look=True,
            )
            passes = tested.drop.mean <= self.limit
            self.probes.append(Probe(name, MetricDrop.of(tested.drop), passes))
            side = "weights" if name.startswith("W") else "activations"
            verdict = "within" if passes else "beyond"
            self.report(
                f"{name}: {side} alone lose {MetricDrop.of(tested.drop).describe()}, {verdict} "
                "the allowed drop"
            )

    @property
    def kept(self) -> float:
        """The share of what the plan saves by quantizing its units that the best model keeps."""
        best, options = self.best, self.candidates.options
        if best is None or best.choice is None or not best.passes:
            return 0.0
        planned = sum(each[_planned_state(each)].cost for each in options)
        in_float = sum(one.cost for each in options for one in each if one.state == "float")
        if in_float <= planned:
            return 1.0
        return (in_float - best.choice.cost) / (in_float - planned)

    @property
    def least_failed(self) -> float:
        """The least error of a model beyond the limit, as a share of that of the plan as it is."""
        planned = sum(each[_planned_state(each)].error for each in self.candidates.options)
        failed = [
            one.choice.error
            for one in (*self.points, *self.aside)
            if one.candidates is self.candidates and one.choice is not None
            if one.tested is not None and not one.passes
        ]
        return min(failed) / planned if failed and planned else 1.0

    # The search -------------------------------------------------------------------------------

    def _bisect(self) -> None:
        """Find the cheapest point within the limit; the metric is nearly monotone along them.

        Points that an earlier run evaluated come first: they take no time.
        """
        low, high = -1, len(self.points)
        for place, point in enumerate(self.points):
            if not self.evaluator.knows(point.name, self.limit):
                continue
            if self._test(point):
                high = place
                break
            low = place
        turn = 0
        while self._is_worth_it(low, high):
            place = self._guess(low, high) if turn % 2 == 0 else (low + high) // 2
            if self._test(self.points[place]):
                high = place
            elif self.points[place].tested is None:
                return  # no time left
            else:
                low = place
            turn += 1

    def _is_worth_it(self, low: int, high: int) -> bool:
        """Whether there are points between these two, and one of them saves enough."""
        if high - low <= 1:
            return False
        if high == len(self.points):  # nothing is within the limit yet
            return True
        cheapest, best = self.points[low + 1].choice, self.points[high].choice
        assert cheapest is not None and best is not None  # they are points of the front
        return best.cost - cheapest.cost >= self._min_saved(best)

    def _min_saved(self, choice: Choice) -> float:
        """Return what a model must save to be worth an evaluation."""
        return MIN_SAVED[self.goal.purpose] * (choice.cost + self.candidates.fixed)

    def _guess(self, low: int, high: int) -> int:
        """Return the point whose predicted error would give a drop just within the limit.

        The drop is taken as proportional to the error, from the nearest model with a figure.
        """
        middle = (low + high) // 2 if low >= 0 else 0
        known = [
            (found.choice.error, found.tested.drop.mean)
            for found in (*self.points, *self.aside)
            if found.tested is not None and found.choice is not None and found.choice.error > 0
        ]
        failed = [(error, drop) for error, drop in known if drop > self.limit > 0]
        if not failed:
            return middle
        error, drop = min(failed, key=lambda pair: pair[1])
        wanted = error * self.limit / drop
        inside = range(low + 1, high)
        for place in inside:
            choice = self.points[place].choice
            if choice is not None and choice.error <= wanted:
                return place
        return inside[-1]

    def _step_back(self) -> None:
        """Try units in cheaper states again, those that save most cost for their error first."""
        best = self.best
        if best is None or not best.passes or best.choice is None:
            return
        options, edges = self.candidates.options, self.candidates.edges
        tried: set[int] = set()
        for _ in range(STEPS_BACK):
            choice = best.choice
            assert choice is not None
            steps = _cheaper(options, edges, choice, self._min_saved(choice))
            steps = [step for step in steps if step[1] not in tried]
            if not steps:
                return
            _, unit, state = max(steps)
            tried.add(unit)
            states = (*choice.states[:unit], state, *choice.states[unit + 1 :])
            found = self._found(add_up(options, states, edges), refined=True)
            if any(found.name == other.name for other in (*self.points, *self.aside)):
                continue
            passes = self._test(found)
            if found.tested is None:
                return
            self.aside.append(found)
            if passes and found is self.best:
                best = found

    # The result -------------------------------------------------------------------------------

    def front_points(self) -> list[tuple[Found, FrontPoint]]:
        """Return all points whose cost is known, the cheapest first, the best among them."""
        made = [
            (one, self._point(one))
            for one in (*self.points, *self.aside)
            if one.choice is not None or one.measured_cost is not None
        ]
        return sorted(made, key=lambda pair: pair[1].known_cost)

    def _point(self, found: Found) -> FrontPoint:
        tested = found.tested
        choice = found.choice
        predicted = None if choice is None else choice.cost + found.candidates.fixed
        return FrontPoint(
            cost=found.measured_cost or 0.0 if predicted is None else predicted,
            # Where no unit has an error, none was measured.
            error=None if choice is None or not found.candidates.shares else choice.error,
            fallen=() if choice is None else _fallen(found.candidates, choice),
            measured_cost=found.measured_cost,
            cost_spread=found.cost_spread,
            measured=None if tested is None else MetricDrop.of(tested.drop),
            verdict=None if tested is None else tested.verdict,
            refined=found.refined,
        )


def _planned_state(options: Sequence[Option]) -> int:
    """Return which of a unit's states the plan has it in."""
    states = [option.state for option in options]
    return states.index("int8") if "int8" in states else 0


def _cheaper(
    options: Sequence[Sequence[Option]], edges: Sequence[Edge], choice: Choice, least: float
) -> list[tuple[float, int, int]]:
    """Return (cost saved for the error, unit, state) for states that save so much at least."""
    near: list[list[Edge]] = [[] for _ in options]
    for edge in edges:
        near[edge.first].append(edge)
        near[edge.second].append(edge)
    forms = [each[state].form for each, state in zip(options, choice.states, strict=True)]

    def cost(unit: int, option: Option) -> float:
        """Return what a unit and the tensors around it cost in this state."""
        between = 0.0
        for edge in near[unit]:
            ends = (option.form if n == unit else forms[n] for n in (edge.first, edge.second))
            between += edge.price(*ends)
        return option.cost + between

    found = []
    for unit, (each, chosen) in enumerate(zip(options, choice.states, strict=True)):
        now = cost(unit, each[chosen])
        for state, option in enumerate(each):
            saved = now - cost(unit, option)
            if state != chosen and saved > least:
                found.append((saved / max(option.error - each[chosen].error, 1e-30), unit, state))
    return found


def _fallen(candidates: Candidates, choice: Choice) -> tuple[FallenUnit, ...]:
    options = candidates.options
    total = sum(max(one.error for one in each) for each in options) or 1.0
    whole = choice.cost + candidates.fixed
    fallen = []
    for unit, each, state in zip(candidates.units, options, choice.states, strict=True):
        cheapest = min(each, key=lambda one: one.cost)
        chosen = each[state]
        if chosen is cheapest:
            if state != _planned_state(each):
                reason = "costs no more than as planned, with less error"
                if chosen.error > 0:
                    reason = f"saves cost for {100 * chosen.error / total:.2g} % of the error"
                fallen.append(FallenUnit(unit.node, unit.op, chosen.state, reason, unit.nodes))
            continue
        saved, price = cheapest.error - chosen.error, chosen.cost - cheapest.cost
        reason = (
            f"{100 * saved / total:.3g} % of the error, for {100 * price / whole:.2g} % of the cost"
        )
        fallen.append(FallenUnit(unit.node, unit.op, chosen.state, reason, unit.nodes))
    return tuple(fallen)
