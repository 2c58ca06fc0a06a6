"""The points of a search: what each model costs, loses and changes."""

from __future__ import annotations

from bitwright.jobs.improve.front import Choice
from bitwright.jobs.improve.mixtures import Mix, MixMaker, UnitTable, planned_state
from bitwright.jobs.tuning.result import FallenUnit, FrontPoint


def front_points(maker: MixMaker, float_cost: float) -> list[tuple[Mix, FrontPoint]]:
    """Return all points whose cost is known, the cheapest first, the best among them."""
    points = [(mix, _point(maker, mix, float_cost)) for mix in maker.shown()]
    return sorted(points, key=lambda pair: pair[1].known_cost)


def _point(maker: MixMaker, mix: Mix, float_cost: float) -> FrontPoint:
    choice, cost, found = mix.choice, maker.known_cost(mix), maker.found(mix)
    if choice is None:
        predicted = 0.0 if cost is None else cost.value
    else:
        predicted = choice.cost + mix.mixtures.table.fixed
        if maker.purpose != "size":  # as many times as float as the cost table has it
            in_float = Mix.in_float(mix.mixtures).add_up().cost + mix.mixtures.table.fixed
            predicted *= float_cost / in_float
    return FrontPoint(
        cost=predicted,
        # Where no unit has an error, none was measured.
        error=None if choice is None or not mix.mixtures.table.shares(1) else choice.error,
        fallen=() if choice is None else _fallen(mix.mixtures.table, choice),
        measured_cost=None if cost is None else cost.value,
        clock=None if cost is None else cost.clock,
        measured=None if found is None else found.score.drop,
        verdict=None if found is None else found.score.verdict,
        refined=mix.refined,
    )


def _fallen(table: UnitTable, choice: Choice) -> tuple[FallenUnit, ...]:
    """Return the units that are not in their cheapest state, or cheaper than planned, and why."""
    total = sum(max(one.error for one in each) for each in table.options) or 1.0
    whole = choice.cost + table.fixed
    fallen = []
    for unit, each, state in zip(table.units, table.options, choice.states, strict=True):
        cheapest, chosen = min(each, key=lambda one: one.cost), each[state]
        if chosen is not cheapest:
            saved, price = (
                100 * (cheapest.error - chosen.error) / total,
                100 * (chosen.cost - cheapest.cost) / whole,
            )
            reason = f"{saved:.3g} % of the error, for {price:.2g} % of the cost"
        elif state == planned_state(each):
            continue
        elif chosen.error > 0:
            reason = f"saves cost for {100 * chosen.error / total:.2g} % of the error"
        else:
            reason = "costs no more than as planned, with less error"
        fallen.append(FallenUnit(unit.node, unit.op, chosen.state, reason, unit.nodes))
    return tuple(fallen)
