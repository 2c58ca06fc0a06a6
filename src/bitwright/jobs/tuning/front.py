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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["Choice", "Edge", "Option", "find_front", "thin_front"]

_ROUNDS = 8
"""How often all units are chosen in turn for one price, if they do not settle before."""


@dataclass(frozen=True, slots=True)
class Option:
    """A state that a unit can be in.

    >>> Option("float", cost=2.0, error=0.0).state
    'float'
    """

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


@dataclass(frozen=True, slots=True)
class Choice:
    """One state for each unit, as indices of its options; `cost` and `error` are of all."""

    states: tuple[int, ...]
    cost: float
    error: float


Units = Sequence[Sequence[Option]]


def find_front(units: Units, edges: Sequence[Edge] = ()) -> list[Choice]:
    """Return points of the front, the cheapest first: without edges, all supported ones.

    >>> conv = [Option("int8", 1, 0.3), Option("float", 3, 0)]
    >>> head = [Option("int8", 1, 0.5), Option("float", 2, 0)]
    >>> [(point.states, point.cost) for point in find_front([conv, head])]
    [((0, 0), 2), ((0, 1), 3), ((1, 1), 5)]
    """
    states, steps = _cheapest(units)
    if not edges:
        return list(_walk(units, states, steps))
    prices = sorted({price for price, _, _ in steps})
    # One price between each two at which a unit would change by itself, and both ends.
    between = [(a + b) / 2 for a, b in pairwise(prices)]
    found = []
    near = _neighbours(len(units), edges)
    for price in (0.0, *between, *([4 * prices[-1]] if prices else [])):
        states = _settle(units, near, states, price)
        found.append(_add_up(units, states, edges))
    found += [_add_up(units, point.states, edges) for point in _walk(units, *_cheapest(units))]
    return _undominated(found)


Steps = list[tuple[float, int, int]]
"""(Price, unit, state): from this price on, the unit is in this state."""


def _cheapest(units: Units) -> tuple[list[int], Steps]:
    """Return the cheapest state of each unit, and the steps from there to the least error."""
    states, steps = [], []
    for place, options in enumerate(units):
        before, *others = _hull(options)
        states.append(before)
        for state in others:
            saved = options[before].error - options[state].error
            steps.append(((options[state].cost - options[before].cost) / saved, place, state))
            before = state
    return states, sorted(steps)


def _walk(units: Units, states: list[int], steps: Steps) -> Iterator[Choice]:
    yield _add_up(units, states)
    for index, (price, place, state) in enumerate(steps):
        states[place] = state
        # Units of one price go together: in between, none is better than the two ends.
        if index + 1 == len(steps) or steps[index + 1][0] != price:
            yield _add_up(units, states)


def _neighbours(count: int, edges: Sequence[Edge]) -> list[list[tuple[int, float]]]:
    near: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for edge in edges:
        near[edge.first].append((edge.second, edge.cost))
        near[edge.second].append((edge.first, edge.cost))
    return near


def _settle(
    units: Units, near: Sequence[Sequence[tuple[int, float]]], states: list[int], price: float
) -> list[int]:
    """Choose unit by unit, with the neighbours as they are, until none changes."""
    states = list(states)
    for _ in range(_ROUNDS):
        before = list(states)
        for place, options in enumerate(units):
            forms = [(units[other][states[other]].form, cost) for other, cost in near[place]]
            totals = [
                one.cost + price * one.error + sum(cost for form, cost in forms if form != one.form)
                for one in options
            ]
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


def _add_up(units: Units, states: Sequence[int], edges: Sequence[Edge] = ()) -> Choice:
    chosen = [options[state] for options, state in zip(units, states, strict=True)]
    converted = sum(e.cost for e in edges if chosen[e.first].form != chosen[e.second].form)
    cost = sum(one.cost for one in chosen) + converted
    return Choice(tuple(states), cost, sum(one.error for one in chosen))


def thin_front(points: Sequence[Choice], *, apart: float, most: int) -> list[Choice]:
    """Return points that differ by the share `apart` of the whole cost, both ends among them.

    >>> points = [Choice((), cost, 100 - cost) for cost in range(101)]
    >>> [point.cost for point in thin_front(points, apart=0.1, most=5)]
    [0, 25, 50, 75, 100]
    """
    if len(points) < 3:
        return list(points)
    costs: npt.NDArray[np.float64] = np.array([point.cost for point in points], np.float64)
    width = costs[-1] - costs[0]
    step = max(apart * costs[-1], width / (most - 1)) if width > 0 else 0.0
    kept = [0]
    for index in range(1, len(points) - 1):
        if costs[index] - costs[kept[-1]] >= step * (1 - 1e-9) and len(kept) < most - 1:
            kept.append(index)
    return [points[index] for index in (*kept, len(points) - 1)]
