"""Recipes and targets by name, AMD's presets among them, and recipes from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bitwright import targets
from bitwright.errors import RecipeError, did_you_mean
from bitwright.numerics.types import INT4, INT8, INT16, QTYPES, UINT8, UINT16
from bitwright.recipe.emulate import Emulation
from bitwright.recipe.finetuning import AdaQuant, AdaRound, FineTuning, SignRound
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import MinMax, MinMSE, Percentile
from bitwright.recipe.options import Placement, Selection
from bitwright.recipe.value import Recipe
from bitwright.recipe.weights import AWQ, GPTQ, HQQ, ByLoss, ByPlace, Nearest, WeightOnly
from bitwright.support.files import check_regular_file
from bitwright.support.notices import warn_user
from bitwright.support.settings import merge
from bitwright.targets import TARGETS, Target

__all__ = ["PRESETS", "RECIPES", "TARGETS", "Target", "named_recipe", "read_recipe"]

# Placement as the vendor's compilers expect it: every op of a listed type has its pairs.
_PLACE = Placement(isolated=True, float_bias_add=False)
# Quark's tool puts no pair between a product and its activation. Asymmetric quantizers need no Relu
# or Clip behind the product at all, so that there is nothing to leave between.
_FUSED = _PLACE.replace(fuse_activations=("Relu", "Clip", "LeakyRelu", "PRelu"))
_ASYMMETRIC = _PLACE.replace(fuse_activations=("LeakyRelu", "PRelu"))
_SYMMETRIC = _FUSED.replace(force_shared=True)
# With 16 bits a Relu or Clip stays there in any case.
_KEPT = Emulation(keep_activations=True)
_EQUALIZED = Recipe(equalize=CrossLayerEqualization(), place=_ASYMMETRIC.replace(force_shared=True))
_CLIPPED = _EQUALIZED.replace(ranges=Percentile())
_CONSTANT_PRODUCTS = Selection(op_types=("Gemm", "MatMul"), constant_weights_only=True)

NPU_CNN = Recipe(
    name="npu-cnn",
    activation=UINT8,
    activation_symmetric=True,
    ranges=MinMSE(symmetric=True),
    weight_ranges=MinMSE(),
    scales="power-of-two",
    bias="weight",
    rewrite=Rewrites(
        batch_norm_to_conv=True,
        reduce_mean_to_pool=True,
        split_large_pools=True,
        split_to_slice=True,
        swish_to_mul=True,
        conv_attributes=True,
    ),
    simulate=Simulation(),
    limits=Limits(),
    select=Selection(op_types=targets.NPU_CNN.op_types),
    place=Placement(isolated=True, float_bias_add=False, fuse_activations=("Relu", "Clip")),
)

# Name of the preset -> number type of its weights and activations.
_BLOCKS = "bfp16 mxint8 mxfp8e5m2 mxfp8e4m3 mxfp6e3m2 mxfp6e2m3 mxfp4e2m1 mx4 mx6 mx9"
_FLOAT_PRESETS = {
    "float16-pairs": "float16",
    "bfloat16-pairs": "bfloat16",
    **{name: name for name in _BLOCKS.split()},
}

_VENDOR_RECIPES = (
    NPU_CNN,
    Recipe(name="npu-transformer", activation=INT8, place=_PLACE),
    Recipe(name="cpu-cnn", place=_PLACE),
    NPU_CNN.replace(name="xint8", equalize=CrossLayerEqualization(), place=_SYMMETRIC),
    _EQUALIZED.replace(name="a8w8", activation=INT8, activation_symmetric=True, place=_SYMMETRIC),
    _CLIPPED.replace(name="s8s8-aaws", activation=INT8, ranges=Percentile(percentile=99.9999)),
    _CLIPPED.replace(name="u8s8-aaws"),
    _CLIPPED.replace(name="u8u8-aawa", weight=UINT8, weight_symmetric=False),
    _CLIPPED.replace(
        name="s16s8-asws", activation=INT16, activation_symmetric=True, place=_SYMMETRIC
    ),
    _CLIPPED.replace(name="u16s8-aaws", activation=UINT16, place=_SYMMETRIC, emulate=_KEPT),
    _EQUALIZED.replace(name="int8-cnn-default"),
    _EQUALIZED.replace(
        name="int16-cnn-default",
        activation=UINT16,
        weight=INT16,
        place=_SYMMETRIC,
        emulate=_KEPT,
    ),
    *(
        Recipe(
            name=f"int{weight.bits}-transformer-default",
            activation=activation,
            weight=weight,
            ranges=MinMax(moving_average=0.01),
            equalize=CrossLayerEqualization(),
            select=_CONSTANT_PRODUCTS,
            place=place,
            emulate=emulate,
        )
        for activation, weight, place, emulate in (
            (UINT8, INT8, _ASYMMETRIC, Emulation()),
            (UINT16, INT16, _FUSED, _KEPT),
        )
    ),
    *(
        _EQUALIZED.replace(
            name=f"int{weight.bits}-{kind}-accurate",
            activation=activation,
            weight=weight,
            ranges=Percentile(percentile=99.9999),
            select=select,
            fine_tune=AdaRound(),
        )
        for activation, weight in ((UINT8, INT8), (UINT16, INT16))
        for kind, select in (
            ("cnn", Selection()),
            ("transformer", _CONSTANT_PRODUCTS),
        )
    ),
    Recipe(name="uint8-dynamic-quant", mode="dynamic", weight=UINT8, dynamic_scale="tensor"),
    Recipe(
        name="matmul-nbits",
        mode="weight-only",
        select=Selection(op_types=("MatMul",)),
        weights=WeightOnly(
            block_size=128, symmetric=True, rounding=Nearest(clip=False), accuracy_level=1
        ),
    ),
    # Float and block types: nothing is calibrated, and a bias is stored like a weight.
    *(
        Recipe(
            name=name,
            format="extended",
            activation=QTYPES[qtype],
            weight=QTYPES[qtype],
            bias="weight",
            select=Selection(op_types=targets.NPU_CNN.op_types),
            place=_FUSED,
        )
        for name, qtype in _FLOAT_PRESETS.items()
    ),
)
# Ranges as those tools choose them, from what is observed alone.
PRESETS = tuple(
    recipe.replace(emulate={"cut_saturated": False, "known_ranges": False})
    if recipe.mode == "static"
    else recipe
    for recipe in _VENDOR_RECIPES
)

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
}

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
        *(
            Recipe(name=n, mode="cast", activation=QTYPES[n], weight=QTYPES[n])
            for n in ("float16", "bfloat16")
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
    check_regular_file(path, RecipeError)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe {str(path)!r} is not a text in UTF-8.") from error
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
    changes = {name: value for name, value in data.items() if name != "base"}
    changed = merge(named_recipe(base), {"name": f"{base} (changed)", **changes})
    return Recipe.from_mapping(changed, source=source)


def _parse_json(text: str, path: Path) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecipeError(f"the recipe {str(path)!r} is not JSON: {error}.") from error


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise RecipeError(f"the recipe {str(path)!r} is not YAML: {reason}.") from error
