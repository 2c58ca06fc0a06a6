"""Correction of biases, and of gains, by what rounding does to the outputs of layers."""

from __future__ import annotations

from collections.abc import Iterator

from bitwright.jobs.improve.loop import Attempt, Trail
from bitwright.jobs.improve.recipes import (
    Attempts,
    Change,
    Judged,
    RecipeCandidate,
    RecipeMaker,
    try_changes,
)
from bitwright.jobs.opening import Prepared
from bitwright.recipe import Recipe


def correct_biases(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    """Try to correct biases layer by layer, beside the same ranges without.

    What the recipe says on that, and how it rounds weights by data, is not up for choice.
    """
    recipe, asked = trail.current.recipe, maker.prepared.recipe
    if asked.bias_correction != "off" or asked.rounding == "gptq":
        trail = yield Attempt(Judged(recipe), "rounding as the recipe says", accept=lambda *_: True)
    if recipe.bias_correction == "off":
        fields = {"bias_correction": "sequential"}
        yield from try_changes(maker, trail, [Change("bias correction layer by layer", fields)])


def gain_corrections(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to correct gains beside biases, where scales can take them."""
    fine = recipe.per_channel and recipe.scales == "float" and recipe.weight.is_integer
    if recipe.bias_correction == "sequential" and not recipe.gain_correction and fine:
        yield Change("gain correction layer by layer", {"gain_correction": True})
