"""Which mixture of a plan costs least within a limit, or loses least within a cost.

Each unit of a plan has states that cost and lose more or less (`front.py`): points of the front of
cost against error are scored by bisection, and units of what is within the limit are tried in
cheaper states again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias

from bitwright.jobs.improve.front import Option, find_within, neighbours
from bitwright.jobs.improve.loop import Attempt, Trail
from bitwright.jobs.improve.mixtures import Mix, MixCandidate, MixMaker, Mixtures, front_of

STEPS_BACK = 3
"""How many units are tried in a cheaper state again."""

Attempts: TypeAlias = Generator[Attempt[Mix], Trail[MixCandidate], Trail[MixCandidate]]


def search_front(maker: MixMaker, mixtures: Mixtures, trail: Trail[MixCandidate]) -> Attempts:
    """Bisect the front, and step back from what is within the limit."""
    maker.front = tuple(front_of(mixtures))
    trail = yield from _bisect(maker, maker.front, trail)
    return (yield from _step_back(maker, mixtures, trail))


def _bisect(maker: MixMaker, points: Sequence[Mix], trail: Trail[MixCandidate]) -> Attempts:
    """Find the cheapest point within the limit; the metric is nearly monotone along them.

    What an earlier run scored takes no time when its turn comes, and changes no turn: the result
    is the same whatever the work folder holds.
    """
    low, high = -1, len(points)
    turn = 0
    while _is_worth_it(maker, points, low, high):
        place = _guess(maker, points, trail, low, high) if turn % 2 == 0 else (low + high) // 2
        trail = yield Attempt(points[place])
        if trail.last.passes:
            high = place
        else:
            low = place
        turn += 1
    return trail


def _is_worth_it(maker: MixMaker, points: Sequence[Mix], low: int, high: int) -> bool:
    """Whether there are points between these two, and one of them saves enough."""
    if high - low <= 1:
        return False
    if high == len(points):  # nothing is within the limit yet
        return True
    cheapest, best = points[low + 1].add_up(), points[high].add_up()
    return best.cost - cheapest.cost >= _min_saved(maker, points[high])


def _min_saved(maker: MixMaker, mix: Mix) -> float:
    """Return what a model must save against this one to be worth being scored."""
    return maker.min_saved * (mix.add_up().cost + mix.mixtures.table.fixed)


def _guess(
    maker: MixMaker, points: Sequence[Mix], trail: Trail[MixCandidate], low: int, high: int
) -> int:
    """Return the point whose predicted error would give a drop just within the limit.

    The drop is taken as proportional to the error, from the nearest model with a figure.
    """
    scored = [(one.mix.choice, one.score.drop.mean) for one in trail.candidates]
    failed = [
        (choice.error, drop)
        for choice, drop in scored
        if choice is not None and choice.error > 0 and drop > maker.limit > 0
    ]
    if not failed:
        return (low + high) // 2 if low >= 0 else 0
    error, drop = min(failed, key=lambda pair: pair[1])
    inside = range(low + 1, high)
    wanted = error * maker.limit / drop
    return next((n for n in inside if points[n].add_up().error <= wanted), inside[-1])


def _step_back(maker: MixMaker, mixtures: Mixtures, trail: Trail[MixCandidate]) -> Attempts:
    """Try units in cheaper states again, those that save most cost for their error first."""
    best, tried = trail.best, set[int]()
    for _ in range(STEPS_BACK):
        if best is None or not best.passes or best.mix.mixtures is not mixtures:
            break
        states = best.mix.add_up().states
        steps = _cheaper(mixtures, states, _min_saved(maker, best.mix))
        steps = [step for step in steps if step[1] not in tried]
        if not steps:
            break
        _, unit, state = max(steps)
        tried.add(unit)
        mix = Mix.of(mixtures, (*states[:unit], state, *states[unit + 1 :]), refined=True)
        if maker.found(mix) is None and all(mix.name != point.name for point in maker.front):
            trail = yield Attempt(mix)
            best = trail.best
    return trail


def _cheaper(
    mixtures: Mixtures, states: Sequence[int], least: float
) -> list[tuple[float, int, int]]:
    """Return (cost saved for the error, unit, state) for states that save so much at least."""
    options = mixtures.table.options
    near = neighbours(len(options), mixtures.table.edges)
    forms = [each[state].form for each, state in zip(options, states, strict=True)]

    def cost(unit: int, option: Option) -> float:
        """Return what a unit and the tensors around it cost in this state."""
        between = 0.0
        for _, edge in near[unit]:
            ends = (option.form if n == unit else forms[n] for n in (edge.first, edge.second))
            between += edge.price(*ends)
        return option.cost + between

    found = []
    for unit, (each, chosen) in enumerate(zip(options, states, strict=True)):
        now = cost(unit, each[chosen])
        for state, option in enumerate(each):
            saved = now - cost(unit, option)
            if state != chosen and saved > least:
                found.append((saved / max(option.error - each[chosen].error, 1e-30), unit, state))
    return found


def least_loss(maker: MixMaker, mixtures: Mixtures, most: float) -> Attempts:
    """Try the model that is expected to lose least of those with so many bytes at most.

    Sizes of units are estimates: where the file has more bytes, that much less is spent. Where
    not even the smallest model fits, it is that one.
    """
    maker.front = tuple(front_of(mixtures))
    table = mixtures.table
    mix, left = maker.front[0], most - table.fixed
    while (choice := find_within(table.options, left, table.edges)) is not None:
        mix = Mix.of(mixtures, choice.states)
        size = maker.cost(mix).value
        if size <= most:
            return (yield Attempt(mix))
        left = min(choice.cost, left) - (size - most)
    return (yield Attempt(maker.front[0]))


def saving_kept(mixtures: Mixtures, best: MixCandidate | None) -> float:
    """Return the share of what a plan saves by quantizing its units that the best model keeps."""
    choice = best.mix.choice if best is not None and best.passes else None
    if choice is None:
        return 0.0
    planned, in_float = (m(mixtures).add_up().cost for m in (Mix, Mix.in_float))
    return (in_float - choice.cost) / (in_float - planned) if in_float > planned else 1.0


def least_failed(mixtures: Mixtures, trail: Trail[MixCandidate]) -> float:
    """Return the least error of a model beyond the limit, as a share of that of its plan."""
    planned = Mix(mixtures).add_up().error
    failed = [
        one.mix.add_up().error
        for one in trail.candidates
        if one.mix.mixtures is mixtures and not one.passes
    ]
    return min(failed) / planned if failed and planned else 1.0
