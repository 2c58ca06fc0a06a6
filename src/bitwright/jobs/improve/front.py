"""The front of cost against error: one state for each unit, by a multiple-choice knapsack.

Minimizing cost + price * error for every price from zero to infinity gives the supported points of
the front, and each of them is a choice unit by unit: the lower convex hull of a unit's states says
at which price it goes from one to the next. Points between two supported ones differ from both by
less than one unit.

Where a float unit stands beside an integer one, the tensor between them is converted, which costs
too. Then the choice of a unit depends on its neighbours: for each price, units are chosen in turn,
with the others as they are, until none changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FLOAT_FORM = "float"
"""What tensors between float units are stored as."""
_ROUNDS = 8
"""How often all units are chosen in turn for one price, if they do not settle before."""
_ROUNDING = 1e-9
"""Sums of the same costs in another order differ by less than this share."""


@dataclass(frozen=True, slots=True)
class Option:
    """A state that a unit can be in."""

    state: str
    cost: float
    error: float
    form: str = ""
    """What its tensors are stored as: between two forms, a tensor is converted."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor between two units, and what it costs to convert it."""

    first: int
    second: int
    cost: float

    def price(self, first: str, second: str) -> float:
        """Return what it costs between units of these forms."""
        return 0.0 if first == second else self.cost


@dataclass(frozen=True, slots=True)
class Choice:
    """One state for each unit, as indices of its options; `cost` and `error` are of all."""

    states: tuple[int, ...]
    cost: float
    error: float


Units = Sequence[Sequence[Option]]


def find_front(units: Units, edges: Sequence[Edge] = ()) -> list[Choice]:
    """Return points of the front, the cheapest first: without edges, all supported ones."""
    states, steps = _cheapest(units)
    if not edges:
        return list(_walk(units, states, steps))
    prices = sorted({price for price, _, _ in steps})
    # One price between each two at which a unit would change by itself, and both ends.
    between = [(a + b) / 2 for a, b in pairwise(prices)]
    found = []
    near = neighbours(len(units), edges)
    for price in (0.0, *between, *([4 * prices[-1]] if prices else [])):
        states = _settle(units, near, states, price)
        found.append(add_up(units, states, edges))
    found += [add_up(units, point.states, edges) for point in _walk(units, *_cheapest(units))]
    return _undominated(found)


def find_within(units: Units, most: float, edges: Sequence[Edge] = ()) -> Choice | None:
    """Return the choice of little error that costs no more than this; None: not even the cheapest.

    It is the last point of the front that fits, and then what is left of the cost is spent, unit
    by unit, on what saves most error for it.
    """
    found = _last_within(units, most, edges)
    if found is None:
        return None
    steps = [
        (_price(options[found.states[place]], one), place, state)
        for place, options in enumerate(units)
        for state, one in enumerate(options)
        if one.error < options[found.states[place]].error
    ]
    for _, place, state in sorted(steps):
        now, other = units[place][found.states[place]], units[place][state]
        # By unit: in the sum, a very small error is rounded off.
        if other.error >= now.error:
            continue
        if not edges and found.cost + other.cost - now.cost > most + _ROUNDING * abs(most):
            continue
        states = (*found.states[:place], state, *found.states[place + 1 :])
        tried = add_up(units, states, edges)
        if tried.cost <= most:
            found = tried
    return found


def _last_within(units: Units, most: float, edges: Sequence[Edge]) -> Choice | None:
    """Return the last point of the front that costs no more than this.

    A point has the state of every unit: without edges, few of them are made to find it.
    """
    if edges:
        points = [point for point in find_front(units, edges) if point.cost <= most]
        return points[-1] if points else None
    states, steps = _cheapest(units)
    ends = _ends(steps)

    def after(count: int) -> Choice:
        chosen = list(states)
        for _, place, state in steps[:count]:
            chosen[place] = state
        return add_up(units, chosen)

    count = bisect_right(ends, most, key=lambda count: after(count).cost)
    return after(ends[count - 1]) if count else None


def _price(now: Option, other: Option) -> float:
    """Return what less error costs, for each unit of it."""
    return (other.cost - now.cost) / (now.error - other.error)


Steps = list[tuple[float, int, int]]
"""(Price, unit, state): from this price on, the unit is in this state."""


def _cheapest(units: Units) -> tuple[list[int], Steps]:
    """Return the cheapest state of each unit, and the steps from there to the least error."""
    states, steps = [], []
    for place, options in enumerate(units):
        before, *others = _hull(options)
        states.append(before)
        for state in others:
            steps.append((_price(options[before], options[state]), place, state))
            before = state
    return states, sorted(steps)


def _ends(steps: Steps) -> list[int]:
    """Return after how many steps the points are, the cheapest first.

    Units of one price go together: in between, none is better than the two ends.
    """
    prices = [price for price, _, _ in steps]
    return [
        0,
        *(n for n in range(1, len(steps) + 1) if n == len(steps) or prices[n] != prices[n - 1]),
    ]


def _walk(units: Units, states: list[int], steps: Steps) -> Iterator[Choice]:
    for begun, end in pairwise([0, *_ends(steps)]):
        for _, place, state in steps[begun:end]:
            states[place] = state
        yield add_up(units, states)


Near = Sequence[Sequence[tuple[int, Edge]]]
"""For each unit, its neighbours and the tensors between."""


def neighbours(count: int, edges: Sequence[Edge]) -> Near:
    """Return for each unit its neighbours, and the tensors between."""
    near: list[list[tuple[int, Edge]]] = [[] for _ in range(count)]
    for edge in edges:
        near[edge.first].append((edge.second, edge))
        near[edge.second].append((edge.first, edge))
    return near


def _settle(units: Units, near: Near, states: list[int], price: float) -> list[int]:
    """Choose unit by unit, with the neighbours as they are, until none changes."""
    states = list(states)
    for _ in range(_ROUNDS):
        before = list(states)
        for place, options in enumerate(units):
            beside = {other: units[other][states[other]].form for other, _ in near[place]}
            totals = []
            for one in options:
                form_of = {**beside, place: one.form}
                between = sum(e.price(form_of[e.first], form_of[e.second]) for _, e in near[place])
                totals.append(one.cost + price * one.error + between)
            best = int(np.argmin(totals))
            if totals[best] < totals[states[place]]:
                states[place] = best
        if states == before:
            break
    return states


def _undominated(points: Sequence[Choice]) -> list[Choice]:
    kept: list[Choice] = []
    for point in sorted(points, key=lambda one: (one.cost, one.error)):
        if not kept or point.error < kept[-1].error:
            kept.append(point)
    return kept


def _hull(options: Sequence[Option]) -> list[int]:
    """Return the lower convex hull of cost against error, from the cheapest on."""
    order = sorted(range(len(options)), key=lambda i: (options[i].cost, options[i].error))
    hull: list[int] = []
    for index in order:
        if hull and options[index].error >= options[hull[-1]].error:
            continue
        while len(hull) > 1 and _bends_up(*(options[i] for i in (*hull[-2:], index))):
            hull.pop()
        hull.append(index)
    return hull


def _bends_up(first: Option, middle: Option, last: Option) -> bool:
    """Whether the middle one lies on or above the line between the others."""
    return (middle.cost - first.cost) * (middle.error - last.error) >= (last.cost - middle.cost) * (
        first.error - middle.error
    )


def add_up(units: Units, states: Sequence[int], edges: Sequence[Edge] = ()) -> Choice:
    """Return what all units in these states cost and lose together."""
    chosen = [options[state] for options, state in zip(units, states, strict=True)]
    converted = sum(e.price(chosen[e.first].form, chosen[e.second].form) for e in edges)
    cost = sum(one.cost for one in chosen) + converted
    return Choice(tuple(states), cost, sum(one.error for one in chosen))


def thin_front(points: Sequence[Choice], *, apart: float, most: int) -> list[Choice]:
    """Return points that differ by about the share `apart` of the whole cost, both ends among them.

    Of those that cost nearly the same, it is the one with the least error.
    """
    if len(points) < 3:
        return list(points)
    costs: npt.NDArray[np.float64] = np.array([point.cost for point in points], np.float64)
    width = costs[-1] - costs[0]
    step = max(apart * costs[-1], width / (most - 1)) if width > 0 else 0.0
    kept, start = [0], costs[0]
    for index in range(1, len(points) - 1):
        if costs[index] - start > step * (1 + 1e-9):
            start = costs[index]
        if costs[index + 1] - start > step * (1 + 1e-9) and len(kept) < most - 1:
            kept.append(index)
    return [points[index] for index in (*kept, len(points) - 1)]
