"""Nodes that fall back to float, or to more bits: the most sensitive ones."""

from __future__ import annotations

import math

import msgspec

from bitwright.assess import NodeSensitivity
from bitwright.jobs.comparison import Measuring
from bitwright.jobs.improve.loop import Trail
from bitwright.jobs.improve.recipes import (
    Attempts,
    Change,
    RecipeCandidate,
    RecipeMaker,
    try_changes,
)
from bitwright.jobs.sensitivity import measure_sensitivity
from bitwright.plan import QuantPlan
from bitwright.recipe import Recipe
from bitwright.support.wording import counted

MIN_REGAINED = 0.05
"""The share of the loss that a node must regain to be left float."""
FALLBACK_NODES = 16
FALLBACK_SAMPLES = 4
"""How many nodes are measured for that, and on how many samples: what stays is judged on all."""
MAX_FALLBACK = 4
"""How many nodes are left float at most."""
HIGHER_PRICE = 4.0
"""How many times the price of noise: half a dB to 4 dB for 3 to 13 % of the time, on four CNNs."""
MAX_FLOAT_SHARE = 0.02
"""The share of all multiply-adds that may leave the integer kernels for that."""


def float_nodes(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    """Try to leave the most sensitive nodes float, if that regains much and costs little work."""
    recipe = trail.current.recipe
    if recipe.is_placed_by_cost and recipe.place.purpose == "balanced":  # by time and noise
        price = {"noise_price": HIGHER_PRICE * recipe.place.noise_price}
        change = Change("nodes float by a higher price of noise", {"place": price})
        yield from try_changes(maker, trail, [change])
        return
    whole = _integer_share(maker, recipe)
    # Where the runtime has no integer kernels, or their work is not known, so is not its price.
    names = _worst_nodes(maker, trail.current.plan) if whole > 0 else []
    changes = []
    for count in range(1, len(names) + 1):
        exclude = (*recipe.select.exclude, *names[:count])
        title = f"{counted(count, 'most sensitive node')} float ({', '.join(names[:count])})"
        fields = {"select": msgspec.structs.replace(recipe.select, exclude=exclude)}
        if _integer_share(maker, recipe.replace(**fields)) >= whole - MAX_FLOAT_SHARE:
            changes.append(Change(title, fields))
    yield from try_changes(maker, trail, changes)


def _worst_nodes(maker: RecipeMaker, plan: QuantPlan) -> list[str]:
    """Return the nodes that would regain most, the worst first."""
    measured = measure_nodes(maker, plan, FALLBACK_NODES, FALLBACK_SAMPLES)
    worst = [node for node in measured if node.regained >= MIN_REGAINED]
    ranked = sorted(worst, key=lambda node: node.regained, reverse=True)
    return [node.name for node in ranked[:MAX_FALLBACK]]


def _integer_share(maker: RecipeMaker, recipe: Recipe) -> float:
    """Return the share of multiply-adds that the runtime computes in integers, or NaN."""
    found = maker.coverage(recipe)
    return math.nan if found is None or found.share is None else found.share


def measure_nodes(
    maker: RecipeMaker, plan: QuantPlan, candidates: int, samples: int
) -> list[NodeSensitivity]:
    """Return what the nodes that lose most on their own do to the outputs."""
    measuring = Measuring(
        samples=maker.judged[-1][:samples],
        providers=maker.prepared.providers,
        memory_budget=maker.calibration.memory_budget,
        engine=maker.calibration.engine,
        progress=maker.calibration.progress,
    )
    source = maker.prepared.source
    return measure_sensitivity(source, plan, measuring, candidates=candidates).nodes
