"""Ranges of activations and weights by other methods, and rounding of low-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from bitwright.jobs.improve.loop import Attempt, Trail
from bitwright.jobs.improve.recipes import Attempts, Change, Judged, RecipeCandidate, RecipeMaker
from bitwright.jobs.opening import Prepared
from bitwright.recipe import MSE, MeanExtremes, MinMax, MinMSE, Recipe

BYTE = 8


def activation_ranges(recipe: Recipe) -> list[Change]:
    """Return the range methods of activations to choose between; one that is named stays."""
    # Sixteen bits have levels to spare, and none for what lies beyond the extremes of few samples.
    small = recipe.activation.is_integer and recipe.activation.bits <= BYTE
    if not small or recipe.ranges != MinMax():
        return [Change("ranges as the recipe says", {})]
    if recipe.scales == "power-of-two":
        return [Change("ranges by least squared error", {"ranges": MinMSE()})]
    return [
        Change("ranges by least squared error", {"ranges": MSE()}),
        Change("ranges by mean extremes", {"ranges": MeanExtremes()}),
        # Where rare large values are the answer, as in the scores of detectors, nothing may be cut.
        Change("ranges by extremes", {}),
    ]


def choose_ranges(maker: RecipeMaker, trail: Trail[RecipeCandidate]) -> Attempts:
    """Begin with the range method of least error: none is the incumbent.

    Each is judged on every fold by the ranges of the others.
    """
    recipe = maker.prepared.recipe
    changes = activation_ranges(recipe)
    for change in changes:
        how: Literal["folds", "planned"] = "folds" if len(changes) > 1 else "planned"
        yield Attempt(Judged(recipe.replace(**change.fields), how), change.name)


def weight_ranges(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to clip weights, where 8 bits for each channel do not hold them well anyway."""
    if recipe.weight.is_integer and not recipe.block_size and not has_fine_weights(recipe):
        best = MinMSE if recipe.scales == "power-of-two" else MSE
        if not isinstance(recipe.weight_ranges, best):
            chosen = best(symmetric=recipe.weight_ranges.symmetric)
            yield Change("ranges of weights by least squared error", {"weight_ranges": chosen})


def has_fine_weights(recipe: Recipe) -> bool:
    """Whether each channel of a weight has 8 bits and a scale of its own."""
    return recipe.per_channel and recipe.weight.bits >= BYTE and recipe.scales == "float"


def roundings(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to round low-bit weights by second moments."""
    if recipe.weight.is_integer and recipe.weight.bits < BYTE and recipe.rounding != "gptq":
        yield Change("rounding by second moments", {"rounding": "gptq"})
