"""`bitwright recipes`: list the named recipes and targets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bitwright.cli.screen import Json, Screen, Table, Verbose

__all__ = ["recipes_command"]


def recipes_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Print this recipe in full, as JSON to edit."),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the recipes and targets, or print one recipe in full."""
    from bitwright.recipe import RECIPES, TARGETS, Recipe, load_recipe

    if name is not None:
        print(load_recipe(name).to_json())
        return

    def describe(recipe: Recipe) -> dict[str, Any]:
        if recipe.mode == "weight-only":
            weights = recipe.weights
            return {
                "name": recipe.name,
                "activation": "float",
                "weight": f"int{weights.bits} in blocks of {weights.block_size}",
                "per_channel": True,
                "symmetric": weights.symmetric,
                "ranges": "+".join(
                    [
                        *(["awq"] if weights.awq is not None else []),
                        str(type(weights.rounding).__struct_config__.tag),
                        *(["refine"] if weights.refine else []),
                    ]
                ),
            }
        return {
            "name": recipe.name,
            "activation": recipe.activation.name,
            "weight": recipe.weight.name,
            "per_channel": recipe.per_channel,
            "symmetric": recipe.activation_symmetric,
            "ranges": "at every run"
            if recipe.mode == "dynamic"
            else str(type(recipe.ranges).__struct_config__.tag),
        }

    recipes = [describe(recipe) for recipe in RECIPES.values()]
    targets = [
        {"name": target.name, "recipe": target.recipe, "description": target.description}
        for target in TARGETS.values()
    ]
    words = {True: "yes", False: "no"}
    recipe_rows = [
        [words[value] if isinstance(value, bool) else value for value in recipe.values()]
        for recipe in recipes
    ]
    columns = ("name", "activations", "weights", "per channel", "symmetric", "ranges")
    Screen(as_json=as_json, verbose=verbose).show(
        {"recipes": recipes, "targets": targets},
        [
            Table("Recipes", columns, recipe_rows),
            Table(
                "Targets",
                ("name", "recipe", "what it is"),
                [list(target.values()) for target in targets],
            ),
            "Print one in full with: bitwright recipes NAME",
            "Add -adaround or -adaquant to the name of one with calibrated integers to fine-tune, "
            "-adaround or -signround to that of one with weights in blocks.",
        ],
    )
