"""Recipes and targets by name, AMD's presets among them, and recipes from files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import INT4, INT8, INT16, QTYPES, UINT8, UINT16
from bitwright.recipe.finetuning import AdaQuant, AdaRound, FineTuning, SignRound
from bitwright.recipe.hardware import Rewrites
from bitwright.recipe.options import Selection
from bitwright.recipe.value import Recipe
from bitwright.recipe.weights import AWQ, GPTQ, HQQ, ByLoss, ByPlace, Nearest, WeightOnly
from bitwright.support import merge, read_parsed, warn_user
from bitwright.targets import TARGETS, Target

__all__ = ["PRESETS", "RECIPES", "TARGETS", "Target", "named_recipe", "read_recipe"]

_VENDOR = Path(__file__).with_name("presets.toml")


def _read_presets() -> tuple[Recipe, ...]:
    """Return the presets of AMD's tools, each of which may start from one before it."""
    found: dict[str, Recipe] = {}
    for name, fields in tomllib.loads(_VENDOR.read_text(encoding="utf-8")).items():
        select = fields.get("select", {})
        if isinstance(select.get("op_types"), str):  # those that a target has
            select["op_types"] = list(TARGETS[select["op_types"]].op_types or ())
        base = found.get(fields.pop("base", ""), Recipe())
        found[name] = Recipe.from_mapping(merge(base, {"name": name, **fields}), source=name)
    return tuple(found.values())


PRESETS = _read_presets()

# What the rest of a preset's name asks for, which no recipe has.
_NOT_YET = {
    "mixed": "give the type of single tensors in `overrides`",
    "weightsonly": "weight-only quantization has recipes of its own",
    "adaround": "only integer weights learn",
    "adaquant": "only integer weights learn",
    "vint8": "use xint8, or a8w8 for float scales",
}


def why_no_preset(name: str) -> str | None:
    """Return why a preset of AMD's tools has no recipe here, or None for an unknown name."""
    return next((reason for part, reason in _NOT_YET.items() if part in name), None)


# The most accurate of 4 bits on a real language model; AWQ before GPTQ gained nothing there.
_INT4 = WeightOnly(
    rounding=GPTQ(damping=0.1),
    refine=2,
    error_propagation=0.5,
    embeddings=True,
    embedding_bits=8,
    mixed=ByLoss(),
)

_WEIGHT_ONLY = {
    "int4": _INT4,
    "int4-mixed": _INT4.replace(mixed=ByLoss(average_bits=5)),
    "int4-k": WeightOnly(
        rounding=Nearest(), embeddings=True, embedding_bits=8, head_bits=8, mixed=ByPlace()
    ),
    "int4-rtn": WeightOnly(rounding=Nearest()),
    "int4-gptq": WeightOnly(rounding=GPTQ()),
    "int4-awq": WeightOnly(rounding=Nearest(), awq=AWQ()),
    "int4-hqq": WeightOnly(rounding=HQQ()),
    "int8-weights": WeightOnly(bits=8),
    "bnb4": WeightOnly(
        block_size=64, rounding=Nearest(clip=False), output="bnb4", accuracy_level=None
    ),
}

_NORMS = Rewrites(fuse_layer_norm=True)  # it sums squares in float32

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="int8"),
        Recipe(name="int8-per-channel", per_channel=True),
        Recipe(name="int8-symmetric", activation=INT8, activation_symmetric=True, per_channel=True),
        Recipe(name="a16w8", activation=UINT16, weight=INT8, per_channel=True),
        Recipe(name="a16w16", activation=INT16, weight=INT16, activation_symmetric=True),
        # Rounded one by one, 4-bit weights lose many a model (MobileNetV1: 6 % top-1 of 69; 56 so).
        Recipe(name="a8w4", activation=UINT8, weight=INT4, per_channel=True, rounding="gptq"),
        Recipe(name="a16w4", activation=UINT16, weight=INT4, per_channel=True, rounding="gptq"),
        Recipe(name="int8-dynamic", mode="dynamic", per_channel=True),
        *(Recipe(name=n, mode="weight-only", weights=w) for n, w in _WEIGHT_ONLY.items()),
        Recipe(name="int8-cache", mode="weight-only", cache="int8", select=Selection(op_types=())),
        *(
            Recipe(name=n, mode="cast", activation=t, weight=t, rewrite=_NORMS)
            for n, t in (("float16", QTYPES["float16"]), ("bfloat16", QTYPES["bfloat16"]))
        ),
        *PRESETS,
    )
}


# Names that were taken for another thing than they are.
_RENAMED = {"fp16": "float16-pairs", "bf16": "bfloat16-pairs"}

_LEARNING: dict[str, FineTuning] = {
    "adaround": AdaRound(),
    "adaquant": AdaQuant(),
    "signround": SignRound(),
}


def named_recipe(name: str) -> Recipe:
    """Return the built-in recipe of this name; AMD's presets are also found as written there.

    Any of them with -adaround, -adaquant or -signround behind it also fine-tunes.

    >>> named_recipe("a16w8").activation.name
    'uint16'
    >>> named_recipe("S8S8_AAWS").name
    's8s8-aaws'
    >>> named_recipe("XINT8_ADAROUND").fine_tune.iterations
    1000
    """
    plain = name.lower().replace("_", "-")
    if plain in _RENAMED:
        now = _RENAMED[plain]
        warn_user(
            f"the recipe {plain!r} is called {now!r} now: it rounds values as an NPU does, in "
            f"pairs of its vendor's domain; {now.removesuffix('-pairs')!r} converts a model.",
            FutureWarning,
        )
        plain = now
    found = RECIPES.get(plain)
    if found is not None:
        return found
    base, _, method = plain.rpartition("-")
    if method in _LEARNING and base in RECIPES:
        return RECIPES[base].replace(name=f"{base}-{method}", fine_tune=_LEARNING[method])
    reason = why_no_preset(plain)
    if reason is not None:
        raise RecipeError(f"there is no recipe {name!r}: {reason}.")
    raise RecipeError(f"unknown recipe {name!r}.{did_you_mean(name, RECIPES)}")


def read_recipe(recipe: str | Path | dict[str, Any] | Recipe) -> Recipe:
    """Return a recipe from a value, a built-in name, a dict, or a .json/.yaml file.

    >>> read_recipe({"base": "int8", "per_channel": True}).per_channel
    True
    """
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, dict):
        return _from_base(recipe, "recipe")
    path = Path(recipe)
    if path.suffix.lower() not in {".json", ".yaml", ".yml"}:
        return named_recipe(str(recipe))
    is_json = path.suffix.lower() == ".json"
    parse, kind = (msgspec.json.decode, "JSON") if is_json else (_parse_yaml, "YAML")
    data = read_parsed(path, "recipe", RecipeError, parse, f"is not {kind}")
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
    changes = {name: value for name, value in data.items() if name != "base"}
    changed = merge(named_recipe(base), {"name": f"{base} (changed)", **changes})
    return Recipe.from_mapping(changed, source=source)


def _parse_yaml(content: bytes) -> Any:
    import yaml

    try:
        return yaml.safe_load(content.decode("utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(error) from error
