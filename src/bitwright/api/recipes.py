"""Recipes as users name them: by name, from a file, for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitwright.errors import TargetError
from bitwright.recipe import Recipe, keep_signed, named_recipe, read_recipe, with_standard_purpose
from bitwright.support.arguments import check_arguments
from bitwright.targets import find_target
from bitwright.targets.host import on_host


@check_arguments
def load_recipe(
    recipe: str | Path | dict[str, Any] | Recipe | None = None, target: str | None = None
) -> Recipe:
    """Return a recipe from a value, a built-in name, a dict, or a .json/.yaml file.

    With a target, it is the target's own if none is given, and else one that the target can run.

    >>> load_recipe("int8-per-channel").per_channel
    True
    >>> load_recipe("int9")
    Traceback (most recent call last):
    bitwright.errors.RecipeError: unknown recipe 'int9'. Did you mean 'int8'?
    """
    if target is None and recipe is not None:
        return read_recipe(recipe)
    # Rules of targets read models as well, whose libraries a recipe alone does not need.
    from bitwright.verification.fitting import fit_recipe, own_recipe, why_unfit

    hardware = find_target("cpu" if target is None else target)
    if recipe is None:
        own = own_recipe(named_recipe(hardware.recipe), hardware)
        own = with_standard_purpose(own, target)
        return own if target is None else keep_signed(own)
    chosen = read_recipe(recipe)
    hardware = on_host(hardware)
    unfit = why_unfit(chosen, hardware)
    if unfit is not None:
        raise TargetError(
            f"recipe {chosen.name!r} is not for the target {target}: it has {unfit}; leave out the "
            f"recipe or the target, or start from the recipe {hardware.recipe}."
        )
    return keep_signed(fit_recipe(chosen, hardware))
