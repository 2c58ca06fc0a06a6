"""The recipe: all options of quantization in one frozen value."""

from __future__ import annotations

from typing import Any

import msgspec

from bitwright.errors import RecipeError
from bitwright.recipe.fields import RecipeFields
from bitwright.recipe.rules import check_rules
from bitwright.support import check_arguments, convert, encode

__all__ = ["Recipe"]


class Recipe(RecipeFields, frozen=True, kw_only=True):
    """All options of quantization; `load_recipe` gives the named recipes.

    >>> from bitwright.recipe import Percentile
    >>> recipe = Recipe(per_channel=True, ranges=Percentile())
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    def __post_init__(self) -> None:
        check_rules(self)

    @property
    def equalizes_by_data(self) -> bool:
        """Whether data is read before ranges are observed, to equalize activations."""
        absorbs = self.equalize is not None and self.equalize.absorb_biases
        return self.smooth is not None or absorbs

    @property
    def can_be_placed(self) -> bool:
        """Whether its integers are for kernels of which the costs are known."""
        return (
            self.mode == "static"
            and self.format == "qdq"
            and self.activation.bits == self.weight.bits == 8
            and self.limits is None
            and self.simulate is None
        )

    @property
    def is_placed_by_cost(self) -> bool:
        """Whether nodes of its models stay float where integers would cost time."""
        return self.place.purpose != "size" and self.can_be_placed

    def to_json(self, *, indent: int = 2) -> str:
        """Return the recipe as JSON; indent 0 keeps it on one line."""
        return encode(self, indent=indent).decode()

    @classmethod
    @check_arguments
    def from_json(cls, text: str | bytes, *, source: str = "recipe") -> Recipe:
        """Read a recipe from JSON; unknown keys are errors with a suggestion."""
        try:
            data = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise RecipeError(f"{source} is not JSON: {error}.") from error
        return convert(data, cls, source)

    @classmethod
    @check_arguments
    def from_mapping(cls, data: dict[str, Any], *, source: str = "recipe") -> Recipe:
        """Read a recipe from plain dicts and lists; `load_recipe` also takes a `base`."""
        if data.get("bias_correction") is False:  # YAML reads a bare `off` as false
            data = {**data, "bias_correction": "off"}
        return convert(data, cls, source)
