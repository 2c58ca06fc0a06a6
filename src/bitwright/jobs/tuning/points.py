"""The points of a search, as its result tells of them: what each model costs, loses and changes."""

from __future__ import annotations

from bitwright.jobs.improve.front import Choice, Option
from bitwright.jobs.improve.mixtures import Mix, MixMaker, Mixtures, planned_state
from bitwright.jobs.tuning.result import FallenUnit, FrontPoint

__all__ = ["front_points"]


def front_points(maker: MixMaker) -> list[tuple[Mix, FrontPoint]]:
    """Return all points whose cost is known, the cheapest first, the best among them."""
    points = [(mix, _point(maker, mix)) for mix in maker.shown()]
    return sorted(points, key=lambda pair: pair[1].known_cost)


def _point(maker: MixMaker, mix: Mix) -> FrontPoint:
    choice, cost, found = mix.choice, maker.known_cost(mix), maker.found(mix)
    if choice is None:
        predicted = 0.0 if cost is None else cost.value
    else:
        predicted = choice.cost + mix.mixtures.fixed
    return FrontPoint(
        cost=predicted,
        # Where no unit has an error, none was measured.
        error=None if choice is None or not mix.mixtures.shares else choice.error,
        fallen=() if choice is None else _fallen(mix.mixtures, choice),
        measured_cost=None if cost is None else cost.value,
        cost_spread=None if cost is None else cost.spread,
        measured=None if found is None else found.score.drop,
        verdict=None if found is None else found.score.verdict,
        refined=mix.refined,
    )


def _fallen(mixtures: Mixtures, choice: Choice) -> tuple[FallenUnit, ...]:
    """Return the units that are not in their cheapest state, or cheaper than planned, and why."""
    total = sum(max(one.error for one in each) for each in mixtures.options) or 1.0
    whole = choice.cost + mixtures.fixed
    fallen = []
    for unit, each, state in zip(mixtures.units, mixtures.options, choice.states, strict=True):
        cheapest, chosen = min(each, key=lambda one: one.cost), each[state]
        if chosen is not cheapest:
            reason = _why_dearer(chosen, cheapest, total, whole)
        elif state == planned_state(each):
            continue
        elif chosen.error > 0:
            reason = f"saves cost for {100 * chosen.error / total:.2g} % of the error"
        else:
            reason = "costs no more than as planned, with less error"
        fallen.append(FallenUnit(unit.node, unit.op, chosen.state, reason, unit.nodes))
    return tuple(fallen)


def _why_dearer(chosen: Option, cheapest: Option, total: float, whole: float) -> str:
    saved, price = cheapest.error - chosen.error, chosen.cost - cheapest.cost
    return f"{100 * saved / total:.3g} % of the error, for {100 * price / whole:.2g} % of the cost"
