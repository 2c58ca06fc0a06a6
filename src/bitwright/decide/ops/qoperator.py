"""What the QOperator format can hold: integer operators, and 8-bit types only."""

from __future__ import annotations

from bitwright.errors import RecipeError
from bitwright.numerics.types import INT8, UINT8
from bitwright.recipe import Recipe

__all__ = ["check_integer_recipe"]

_PAIR_OPTIONS = ("dedicated_pairs", "dedicated_dequantizers", "weight_pairs", "contrib_ops")


def check_integer_recipe(recipe: Recipe) -> None:
    """Refuse what the QOperator format cannot hold.

    >>> from bitwright import load_recipe
    >>> check_integer_recipe(load_recipe("a16w8").replace(format="qoperator"))
    Traceback (most recent call last):
    bitwright.errors.RecipeError: QOperator holds int8 and uint8 only, and activations are to \
be uint16; use format 'qdq' for other types.
    """
    types = [("activations are", recipe.activation), ("weights are", recipe.weight)]
    for name, override in recipe.overrides.items():
        types += [(f"{name!r} is", qtype) for qtype in override.types]
        if override.block_size:
            raise RecipeError(
                f"QOperator has no blocks, and {name!r} is to have them; use format 'qdq'."
            )
    for what, qtype in types:
        if qtype not in (INT8, UINT8):
            raise RecipeError(
                f"QOperator holds int8 and uint8 only, and {what} to be {qtype}; "
                "use format 'qdq' for other types."
            )
    if recipe.bias != "int32":
        raise RecipeError(
            "QOperator adds int32 biases at (input scale x weight scale) and has no place for bias "
            f"{recipe.bias!r}; drop it, or use format 'qdq'."
        )
    if recipe.block_size:
        raise RecipeError("QOperator has no blocks; drop block_size, or use format 'qdq'.")
    for option in _PAIR_OPTIONS:
        if getattr(recipe.emulate, option):
            raise RecipeError(
                f"emulate.{option} is about Q/DQ pairs, which QOperator does without; drop it, or "
                "use format 'qdq'."
            )
