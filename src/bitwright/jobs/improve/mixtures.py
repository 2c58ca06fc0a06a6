"""Models that are one plan with some of its units in other states: made, scored and priced."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from bitwright.assess import Clock, Drop, stays_float
from bitwright.decide.left_float import fall_back
from bitwright.jobs.improve.front import Choice, Edge, Option, add_up, find_front, thin_front
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.scorer import Runnable, Score, Scorer
from bitwright.jobs.improve.states import Unit, with_states
from bitwright.jobs.opening import Prepared
from bitwright.plan import QuantPlan

BASE = "base"
"""The name of a plan as it is."""
MAX_POINTS = 12
APART = 0.02
"""Points of the front differ by this share of the whole cost at least."""
IN_FLOAT: Mapping[str, str] = {"": "float"}
"""The states of a model of which nothing is quantized, whatever its units are."""


@dataclass(frozen=True)
class Made(Runnable):
    """A model that was made, and its plan."""

    plan: QuantPlan = field(kw_only=True)


class UnitTable(msgspec.Struct, frozen=True, kw_only=True):
    """The units of a plan that have states, and what each costs and loses in each of them."""

    units: tuple[Unit, ...]
    options: tuple[tuple[Option, ...], ...]
    """For each unit its states, with their cost and error."""
    edges: tuple[Edge, ...] = ()
    """The tensors between units."""
    fixed: float = 0.0
    """What everything else costs."""

    @property
    def planned_errors(self) -> dict[str, float]:
        """The error of each unit as it is planned."""
        pairs = zip(self.units, self.options, strict=True)
        return {unit.node: options[planned_state(options)].error for unit, options in pairs}

    def shares(self, count: int) -> tuple[tuple[str, float], ...]:
        """Return the units that make most of the error, and their shares of it."""
        errors = self.planned_errors
        summed = sum(errors.values()) or 1.0
        ranked = sorted(errors, key=lambda name: -errors[name])[:count]
        return tuple((name, errors[name] / summed) for name in ranked if errors[name] > 0)


@dataclass
class Mixtures:
    """All models of one plan.

    What their units cost and lose is measured when a mixture is first asked for: the plan as it is,
    and float, need none of it.
    """

    plan: QuantPlan
    name: str
    """What figures of these models are kept under."""
    journal: Journal
    priced: str
    """What cost is, as figures of the same plan differ in it."""

    @property
    def stays_float(self) -> bool:
        """Whether the plan quantizes nothing."""
        return stays_float(self.plan)

    @property
    def is_measured(self) -> bool:
        """Whether it is known what units cost, and so which mixtures there are."""
        return "table" in self.__dict__

    @cached_property
    def table(self) -> UnitTable:
        """The units that have states: from the journal, or measured and written there."""
        name = f"units/{self.name}/{self.priced}"
        if name not in self.journal:
            self.journal[name] = msgspec.to_builtins(self.measure())
        return msgspec.convert(self.journal.get(name), UnitTable)

    def is_float(self, states: Mapping[str, str]) -> bool:
        """Whether nothing of the model with these states is quantized."""
        if not states:
            return self.stays_float
        return states == IN_FLOAT or all(
            states.get(unit.node) == "float" for unit in self.table.units
        )

    def planned(self, prepared: Prepared, states: Mapping[str, str]) -> QuantPlan:
        """Return the plan of a model; what is float has no node left that no unit was made of."""
        plan = self.plan
        if states and self.is_float(states):
            nodes = [name for name, node in plan.nodes.items() if node.quantized]
            return fall_back(prepared.model, plan, nodes)
        return with_states(prepared, plan, self.table.units, states) if states else plan

    def measure(self) -> UnitTable:
        """Measure what each unit costs and loses in each state."""
        raise NotImplementedError

    def make(self, states: Mapping[str, str]) -> Made:
        """Make a model; units that are not named are as planned."""
        raise NotImplementedError

    def probes(self) -> Mapping[str, Callable[[], Runnable]]:
        """Return models in which only weights, or only activations, are quantized."""
        return {}


def planned_state(options: Sequence[Option]) -> int:
    """Return which of a unit's states the plan has it in."""
    states = [option.state for option in options]
    return states.index("int8") if "int8" in states else 0


@dataclass(frozen=True, slots=True)
class Mix:
    """One model: a plan, and the units of it that are not as planned."""

    mixtures: Mixtures
    states: Mapping[str, str] = field(default_factory=dict)
    refined: bool = False
    """Whether it is a step back from a point of the front."""

    @classmethod
    def of(cls, mixtures: Mixtures, states: Sequence[int], *, refined: bool = False) -> Mix:
        """Return the model with the units in these of their states."""
        table = mixtures.table
        pairs = zip(table.units, table.options, states, strict=True)
        changed = {
            unit.node: options[state].state
            for unit, options, state in pairs
            if state != planned_state(options)
        }
        return cls(mixtures, changed, refined)

    @classmethod
    def in_float(cls, mixtures: Mixtures) -> Mix:
        """Return the model with all units in float."""
        if not mixtures.is_measured:
            return cls(mixtures, IN_FLOAT)
        return cls(mixtures, {unit.node: "float" for unit in mixtures.table.units})

    @property
    def name(self) -> str:
        """What its figures are kept under."""
        text = ";".join(f"{node}={state}" for node, state in sorted(self.states.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16] if self.states else BASE
        return f"{self.mixtures.name}/{digest}"

    @property
    def is_float(self) -> bool:
        """Whether nothing of it is quantized."""
        return self.mixtures.is_float(self.states)

    @property
    def choice(self) -> Choice | None:
        """What its units cost and lose together; None: that was not measured."""
        return self.add_up() if self.mixtures.is_measured else None

    def add_up(self) -> Choice:
        """Return what its units cost and lose together, measured where that was not known."""
        states, table = [], self.mixtures.table
        for unit, options in zip(table.units, table.options, strict=True):
            names = [option.state for option in options]
            state = self.states.get(unit.node)
            states.append(planned_state(options) if state is None else names.index(state))
        return add_up(table.options, states, table.edges)


def front_of(mixtures: Mixtures) -> list[Mix]:
    """Return points of the front of cost against error, the cheapest first."""
    front = find_front(mixtures.table.options, mixtures.table.edges)
    chosen = thin_front(front, apart=APART, most=MAX_POINTS)
    return [Mix.of(mixtures, choice.states) for choice in chosen]


class Cost(NamedTuple):
    """Milliseconds or bytes of a model; of a time also what it is beside float."""

    value: float
    clock: Clock | None = None

    @classmethod
    def of_time(cls, clock: Clock) -> Cost:
        """Return the cost of a model that was timed."""
        return cls(clock.quantized_ms, clock)

    @property
    def is_slower(self) -> bool:
        """Whether the model is slower than the prepared float model."""
        return self.clock is not None and self.clock.is_slower


@dataclass(frozen=True, slots=True)
class MixCandidate:
    """A model that was scored."""

    mix: Mix
    score: Score
    is_new: bool = True
    """Whether it was run; else the journal had its score."""

    @property
    def passes(self) -> bool:
        """Whether it is within the limit."""
        return self.score.passes


class Deadline:
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


@dataclass
class MixMaker:
    """Makes models, scores them by the metric and prices them; what was done once is kept."""

    scorer: Scorer
    journal: Journal
    limit: float
    """How far the metric may fall."""
    purpose: str
    price: Callable[[Made], Cost]
    """Gives what a model costs by itself."""
    min_saved: float
    """The share of the whole cost that a model must save to be worth being scored."""
    deadline: Deadline
    report: Callable[[str], None] = lambda line: None
    takes_slow: bool = False
    """Whether a model that is slower than float may be the result."""
    front: tuple[Mix, ...] = ()
    """The front that was searched last."""
    _last: tuple[str, Made] | None = None
    _candidates: dict[str, MixCandidate] = field(default_factory=dict)
    _costs: dict[str, Cost] = field(default_factory=dict)
    _priced: list[Mix] = field(default_factory=list)

    def model(self, mix: Mix) -> Made:
        """Make a model; the last one is at hand."""
        if self._last is None or self._last[0] != mix.name:
            self._last = (mix.name, mix.mixtures.make(mix.states))
        return self._last[1]

    def found(self, mix: Mix) -> MixCandidate | None:
        """Return a model that was scored, or None."""
        return self._candidates.get(mix.name)

    def make(self, mix: Mix) -> MixCandidate:
        """Score a model, and price it if it is wanted."""
        known = self.found(mix)
        if known is not None:
            return known
        has_other = any(one.passes for one in self._candidates.values())
        score = self.scorer.score_of_float()
        if not mix.is_float:
            score = self.scorer.score(
                mix.name,
                lambda: self.model(mix),
                self.limit,
                has_other=has_other,
                may_go_on=self.deadline.has,
            ).decided(self.limit)
        made = MixCandidate(mix, score, mix.name in self.scorer.models)
        self._candidates[mix.name] = made
        # How fast a model is that is not wanted is not worth the time.
        if made.passes or self.purpose == "size":
            self.cost(mix)
        drop = score.drop.describe()
        self.report(f"{len(mix.states)} units changed: drop {drop}, {score.verdict}")
        return made

    def first_drop(self, mix: Mix) -> Drop:
        """Return how far the metric falls with a model, as the first look has it."""
        return self.scorer.score(
            mix.name, lambda: self.model(mix), self.limit, first_look=True
        ).drop

    def cost(self, mix: Mix) -> Cost:
        """Return what a model costs by itself."""
        if mix.name not in self._costs:
            key = f"cost/{'bytes' if self.purpose == 'size' else 'time'}/{mix.name}"
            known = self.journal.get(key)
            if known is None:
                cost = self.price(self.model(mix))
                self.journal[key] = cost.value if cost.clock is None else cost.clock.to_dict()
            else:
                cost = (
                    Cost.of_time(Clock.of_dict(known)) if isinstance(known, dict) else Cost(known)
                )
            self._priced.append(mix)
            self._costs[mix.name] = cost
        return self._costs[mix.name]

    def known_cost(self, mix: Mix) -> Cost | None:
        """Return what a model costs, if it was priced."""
        return self._costs.get(mix.name)

    def is_too_slow(self, mix: Mix) -> bool:
        """Whether a model that was priced is slower than float, and may not be."""
        cost = self.known_cost(mix)
        return cost is not None and cost.is_slower and not self.takes_slow

    def is_better(self, before: MixCandidate, after: MixCandidate) -> bool:
        """Whether a model is to take the place of another: cheaper within the limit, else closer.

        What is slower than float is as far from it as what is beyond the limit. Times within a plan
        are those of the cost table: two that were measured, one after the other, differ by what
        else the machine does.
        """
        same = before.mix.mixtures is after.mix.mixtures and before.mix.mixtures.is_measured
        return self._rank(after, estimated=same) < self._rank(before, estimated=same)

    def _rank(self, candidate: MixCandidate, *, estimated: bool) -> tuple[bool, float]:
        if not candidate.passes or self.is_too_slow(candidate.mix):
            return True, candidate.score.drop.mean
        choice = candidate.mix.choice if estimated and self.purpose != "size" else None
        if choice is not None:
            return False, choice.cost
        cost = self.known_cost(candidate.mix)
        return False, math.inf if cost is None else cost.value

    def budget(self) -> str | None:
        """Return why no further model can be scored; None: there is time."""
        return None if self.deadline.has(self.scorer.first_look_seconds) else self.deadline.stopped

    def shown(self) -> list[Mix]:
        """Return the models to tell of: all that were scored, and of the last plan other points.

        Those are the front that was searched, and what was priced only.
        """
        scored = [one.mix for one in self._candidates.values()]
        last = scored[-1].mixtures
        others = [mix for mix in (*self.front, *self._priced) if mix.mixtures is last]
        known = {mix.name: mix for mix in (*others, *scored)}
        return [mix for mix in known.values() if mix.choice or self.known_cost(mix)]
