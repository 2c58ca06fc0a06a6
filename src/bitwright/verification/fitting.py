"""Recipes for a target: what its rules ask of a recipe, and the recipe that keeps them."""

from __future__ import annotations

from bitwright.errors import RecipeError, TargetError
from bitwright.recipe import Recipe
from bitwright.targets import NPU_CNN, Target
from bitwright.verification.rules import read_rules


def why_unfit(recipe: Recipe, target: Target) -> str | None:
    """Return what of a recipe a target does not take; None: it takes all."""
    if target.modes is not None and recipe.mode not in target.modes:
        return f"the mode {recipe.mode}"
    if target.formats is not None and recipe.format not in target.formats:
        return f"the format {recipe.format}"
    if target.needs_limits and recipe.limits is None:
        return "no limits, which keep power-of-two scales within the target's shifters"
    if target.needs_limits and target.limits != NPU_CNN.limits:
        return "limits of npu-cnn, and other ones can be verified, but not planned for"
    reasons = (rule.why_unfit(recipe) for rule in read_rules(target).values())
    return next((reason for reason in reasons if reason is not None), None)


def fit_recipe(recipe: Recipe, target: Target) -> Recipe:
    """Return a recipe that a target takes with the placement that the target's rules ask for."""
    if (target.settings.get("opset") or 0) > (recipe.opset or 0):
        recipe = recipe.replace(opset=target.settings["opset"])
    if recipe.mode == "static":
        recipe = _with_places(recipe, target)
    for rule in read_rules(target).values():
        changes = rule.change(recipe)
        if changes:
            recipe = recipe.replace(**changes)
    return recipe


def _with_places(recipe: Recipe, target: Target) -> Recipe:
    """Give a recipe the rewrites of the target, and its places where it says nothing of them."""
    plain = Recipe()
    changes = {
        name: target.settings[name]
        for name in ("rewrite", "select", "place", "min_real_range")
        if name in target.settings
        and (name == "rewrite" or getattr(recipe, name) == getattr(plain, name))
    }
    return recipe.replace(**changes) if changes else recipe


def own_recipe(base: Recipe, target: Target) -> Recipe:
    """Return the recipe of a target that is given none: its base, its settings, its rules."""
    if target.modes == ():
        raise TargetError(
            f"the target {target.name} runs nothing that is quantized: give it the float model."
        )
    if not target.settings and not target.rules:
        return base
    try:
        made = base.replace(**{"name": target.name, **target.settings})
    except RecipeError as error:
        raise TargetError(f"the settings of the target {target.name}: {error}") from error
    made = fit_recipe(made, target)
    unfit = why_unfit(made, target)
    if unfit is not None:
        raise TargetError(
            f"the target {target.name} contradicts itself: its recipe has {unfit}; change its "
            "settings or its rules."
        )
    return made
