"""Rounding of weights by the second moments of what they multiply."""

from __future__ import annotations

from collections.abc import Iterator

from bitwright.jobs.improve.proposals.ranges import BYTE
from bitwright.jobs.improve.recipes import Change
from bitwright.jobs.opening import Prepared
from bitwright.recipe import Recipe

__all__ = ["roundings"]


def roundings(recipe: Recipe, prepared: Prepared) -> Iterator[Change]:
    """Propose to round low-bit weights by second moments."""
    if recipe.weight.is_integer and recipe.weight.bits < BYTE and recipe.rounding != "gptq":
        yield Change("rounding by second moments", {"rounding": "gptq"})
