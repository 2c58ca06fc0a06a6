"""`bitwright recipes`: list the named recipes and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitwright.cli.groups import complete_recipe
from bitwright.cli.screen import Json, Part, Screen, Table, Verbose

if TYPE_CHECKING:
    from bitwright.recipe import Recipe

# The recipe to begin with, and for which model it is.
_START = {
    "int8-per-channel": "convolutional networks and encoders, with calibration data; the default",
    "int8-dynamic": "transformers, without data: activations are quantized at every run",
    "int4": "language models: weights of 4 bits, activations stay float",
}


def recipes_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print this recipe in full, as JSON to edit.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the recipes and targets, or print one recipe in full."""
    from bitwright.recipe import RECIPES, TARGETS, read_recipe

    if name is not None:
        print(read_recipe(name).to_json())
        return
    recipes = [_describe(recipe) for recipe in RECIPES.values()]
    targets = [
        {"name": target.name, "recipe": target.recipe, "description": target.description}
        for target in TARGETS.values()
    ]
    groups: dict[str, list[list[str]]] = {}
    words = {True: "yes", False: "no"}
    for recipe in recipes:
        cells = [words.get(value, value) for key, value in recipe.items() if key != "purpose"]
        groups.setdefault(recipe["purpose"], []).append(cells)
    columns = ("name", "activations", "weights", "per channel", "symmetric", "ranges")
    parts: list[Part] = [
        Table("Start from one of these", ("name", "for"), list(_START.items())),
        *(Table(purpose, columns, rows) for purpose, rows in groups.items()),
        Table(
            "Targets",
            ("name", "recipe", "what it is"),
            [list(target.values()) for target in targets],
        ),
        "Print one in full with: bitwright recipes NAME",
        "Add -adaround or -adaquant to the name of one with calibrated integers to fine-tune, "
        "-adaround or -signround to that of one with weights in blocks.",
    ]
    document = {"start": _START, "recipes": recipes, "targets": targets}
    Screen(as_json=as_json, verbose=verbose).show(document, parts)


def _describe(recipe: Recipe) -> dict[str, Any]:
    ranges = {"dynamic": "at every run", "cast": "none"}
    described = {
        "name": recipe.name,
        "activation": recipe.activation.name,
        "weight": recipe.weight.name,
        "per_channel": recipe.per_channel,
        "symmetric": recipe.activation_symmetric,
        "ranges": ranges.get(recipe.mode) or str(type(recipe.ranges).__struct_config__.tag),
        "purpose": _purpose_of(recipe),
    }
    if recipe.mode == "weight-only":
        weights, method = recipe.weights, str(type(recipe.weights.rounding).__struct_config__.tag)
        steps = {"awq": weights.awq is not None, method: True, "refine": weights.refine}
        described |= {
            "activation": "float",
            "weight": f"int{weights.bits} in blocks of {weights.block_size}",
            "per_channel": True,
            "symmetric": weights.symmetric,
            "ranges": "+".join(step for step, is_taken in steps.items() if is_taken),
        }
    return described


def _purpose_of(recipe: Recipe) -> str:
    """Return the heading under which a recipe is listed."""
    from bitwright.recipe import PRESETS, TARGETS

    presets = {preset.name for preset in PRESETS}
    if any(target.recipe == recipe.name for target in TARGETS.values()) and recipe.name in presets:
        return "For the hardware of a target"
    if recipe.format == "extended":
        return "Float and shared-exponent types, as pairs of the vendor's domain for NPUs"
    if recipe.name in presets:
        return "By the names of AMD's tools"
    if recipe.mode == "cast":
        return "Half precision, without quantizers"
    if recipe.mode == "weight-only":
        return "Weights only, for language models"
    return "Integer weights and activations"
