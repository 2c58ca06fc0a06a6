"""Correction of biases, and of gains, by what rounding does to the outputs of layers."""

from __future__ import annotations

from collections.abc import Iterator

from bitwright.jobs.improve.recipes import Change
from bitwright.jobs.opening import Prepared
from bitwright.recipe import Recipe

__all__ = ["bias_corrections"]


def bias_corrections(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to correct biases layer by layer, with gains where scales can take them.

    Both are accepted layer by layer, so that neither shifts alone nor those that means give need a
    candidate of their own.
    """
    if recipe.bias_correction != "off":
        return
    if recipe.per_channel and recipe.scales == "float" and recipe.weight.is_integer:
        gains = {"bias_correction": "sequential", "gain_correction": True}
        yield Change("bias and gain correction layer by layer", gains)
    else:
        yield Change("bias correction layer by layer", {"bias_correction": "sequential"})
