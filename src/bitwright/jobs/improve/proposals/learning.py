"""Weights that learn: AdaRound on the segments that make most of the error."""

from __future__ import annotations

import msgspec
import numpy as np

from bitwright.jobs.improve.loop import Step, Trail
from bitwright.jobs.improve.proposals.fallback import measure_nodes
from bitwright.jobs.improve.recipes import (
    Attempts,
    Change,
    RecipeCandidate,
    RecipeMaker,
    try_changes,
)
from bitwright.jobs.sensitivity import SENSITIVITY_SAMPLES
from bitwright.plan import QuantPlan
from bitwright.recipe import LEARNING_OPS, AdaRound, Recipe

ERROR_FRACTION = 0.8
"""AdaRound goes to the segments whose weights make this fraction of the error."""
SENSITIVITY_NODES = 64
"""How many nodes are measured for AdaRound, those that lose most on their own."""


def learn(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    """Let the weights of the most sensitive segments learn, if that helps.

    All of them do in place of second moments, or those that do not learn would be the worse.
    """
    recipe, learning = trail.current.recipe, maker.learning
    rounding = maker.prepared.recipe.rounding
    nodes: tuple[str, ...] | None = ()
    if recipe.rounding != rounding:
        nodes = None
    elif learning is not None or recipe.weight.is_integer:
        nodes = _most_sensitive(maker, trail.current.plan)
    if nodes == ():
        yield Step("AdaRound", None, None)
        return
    learning = msgspec.structs.replace(learning or default_learning(recipe), nodes=nodes)
    corrected = "off" if recipe.bias_correction == "off" else "sequential"
    fields = {"fine_tune": learning, "bias_correction": corrected, "rounding": rounding}
    yield from try_changes(maker, trail, [Change("AdaRound", fields)])


def _most_sensitive(maker: RecipeMaker, plan: QuantPlan) -> tuple[str, ...]:
    """Return the nodes that make most of the error and can learn, the worst first."""
    measured = measure_nodes(maker, plan, SENSITIVITY_NODES, SENSITIVITY_SAMPLES)
    learning = [node for node in measured if node.op in LEARNING_OPS]
    ranked = sorted(learning, key=lambda node: node.weight, reverse=True)
    sums = np.cumsum([node.weight for node in ranked])
    if not sums.size or not np.isfinite(sums[-1]) or sums[-1] == 0:
        return ()
    needed = int(np.searchsorted(sums, ERROR_FRACTION * sums[-1])) + 1
    return tuple(node.name for node in ranked[:needed])


def default_learning(recipe: Recipe) -> AdaRound:
    """Return how weights learn where the recipe does not say: activation scales too, if low-bit."""
    low_bit = recipe.activation.is_integer and recipe.activation.bits < 8
    return AdaRound(learn_activation_scales=low_bit and recipe.scales == "float")
