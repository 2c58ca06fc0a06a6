"""Recipes and targets by name, and recipes from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bitwright.errors import RecipeError, TargetError, did_you_mean
from bitwright.numerics.types import INT4, INT8, INT16, UINT8, UINT16
from bitwright.recipe.finetuning import AdaQuant, AdaRound, FineTuning
from bitwright.recipe.presets import PRESET_ALIASES, PRESETS, why_no_preset
from bitwright.recipe.value import Recipe
from bitwright.recipe.weights import AWQ, GPTQ, HQQ, Nearest, WeightOnly
from bitwright.support.arguments import check_arguments
from bitwright.support.settings import to_name
from bitwright.targets import TARGETS, Target, find_target

__all__ = ["RECIPES", "TARGETS", "Target", "load_recipe", "named_recipe"]

WEIGHT_RECIPES = tuple(
    Recipe(name=name, mode="weight-only", weights=weights)
    for name, weights in (
        # The most accurate of them on a real language model; AWQ before GPTQ gained nothing there.
        ("int4", WeightOnly(rounding=GPTQ(), refine=2)),
        ("int4-rtn", WeightOnly(rounding=Nearest())),
        ("int4-gptq", WeightOnly(rounding=GPTQ())),
        ("int4-awq", WeightOnly(rounding=Nearest(), awq=AWQ())),
        ("int4-hqq", WeightOnly(rounding=HQQ())),
        ("int8-weights", WeightOnly(bits=8)),
    )
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="int8"),
        Recipe(name="int8-per-channel", per_channel=True),
        Recipe(name="int8-symmetric", activation=INT8, activation_symmetric=True, per_channel=True),
        Recipe(name="a16w8", activation=UINT16, weight=INT8, per_channel=True),
        Recipe(name="a16w16", activation=INT16, weight=INT16, activation_symmetric=True),
        Recipe(name="a8w4", activation=UINT8, weight=INT4, per_channel=True),
        Recipe(name="a16w4", activation=UINT16, weight=INT4, per_channel=True),
        Recipe(name="int8-dynamic", mode="dynamic", per_channel=True),
        *WEIGHT_RECIPES,
        *PRESETS,
    )
}


_LEARNING: dict[str, FineTuning] = {"adaround": AdaRound(), "adaquant": AdaQuant()}


def named_recipe(name: str) -> Recipe:
    """Return the built-in recipe of this name; AMD's presets are also found as written there.

    Any of them with -adaround or -adaquant behind it also fine-tunes.

    >>> named_recipe("a16w8").activation.name
    'uint16'
    >>> named_recipe("S8S8_AAWS").name
    's8s8-aaws'
    >>> named_recipe("XINT8_ADAROUND").fine_tune.iterations
    1000
    """
    plain = name.lower().replace("_", "-")
    found = RECIPES.get(PRESET_ALIASES.get(plain, plain))
    if found is not None:
        return found
    base, _, method = plain.rpartition("-")
    base = PRESET_ALIASES.get(base, base)
    if method in _LEARNING and base in RECIPES:
        return RECIPES[base].replace(name=f"{base}-{method}", fine_tune=_LEARNING[method])
    reason = why_no_preset(plain)
    if reason is not None:
        raise RecipeError(f"there is no recipe {name!r}: {reason}.")
    raise RecipeError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)}")


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
    hardware = find_target("cpu" if target is None else target)
    if recipe is None:
        return named_recipe(hardware.recipe)
    found = _read_recipe(recipe)
    unfit = None if target is None else _why_unfit(found, hardware)
    if unfit is not None:
        raise TargetError(
            f"recipe {found.name!r} is not for the target {target}: it has {unfit}; leave out the "
            f"recipe or the target, or start from the recipe {hardware.recipe}."
        )
    return found


def _why_unfit(recipe: Recipe, target: Target) -> str | None:
    """Return what of a recipe a target does not take."""
    if target.modes is not None and recipe.mode not in target.modes:
        return f"the mode {recipe.mode}"
    if target.formats is not None and recipe.format not in target.formats:
        return f"the format {recipe.format}"
    if target.needs_limits and recipe.limits is None:
        return "no limits, which keep power-of-two scales within the target's shifters"
    return None


def _read_recipe(recipe: str | Path | dict[str, Any] | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, dict):
        return _from_base(recipe, "recipe")
    path = Path(recipe)
    if path.suffix.lower() not in {".json", ".yaml", ".yml"}:
        return named_recipe(str(recipe))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {str(path)!r}: {error.strerror}.") from error
    data = _parse_json(text, path) if path.suffix.lower() == ".json" else _parse_yaml(text, path)
    if not isinstance(data, dict):
        raise RecipeError(f"the recipe {str(path)!r} must be a mapping of options.")
    return _from_base(data, str(path))


def _from_base(data: dict[str, Any], source: str) -> Recipe:
    """Read a recipe from plain dicts and lists, `base` naming the recipe that it starts from."""
    base = data.get("base")
    if base is None:
        return Recipe.from_mapping(data, source=source)
    if not isinstance(base, str):
        raise RecipeError(f"{source}: base must be the name of a recipe, not {base!r}.")
    start = msgspec.to_builtins(named_recipe(base), enc_hook=to_name)
    changes = {name: value for name, value in data.items() if name != "base"}
    name = data.get("name", f"{base} (changed)")
    return Recipe.from_mapping({**start, "name": name, **changes}, source=source)


def _parse_json(text: str, path: Path) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RecipeError(f"the recipe {str(path)!r} is not JSON: {error}.") from error


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise RecipeError(f"the recipe {str(path)!r} is not YAML: {reason}.") from error
