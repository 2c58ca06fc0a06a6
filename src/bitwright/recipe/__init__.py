"""Recipes: how to quantize, as frozen values that are the same in Python, YAML and JSON."""

from __future__ import annotations

from bitwright.recipe.finetuning import AdaQuant, AdaRound, FineTuning
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import (
    MSE,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    RangeMethod,
    ScaleKind,
)
from bitwright.recipe.named import RECIPES, TARGETS, Target, load_recipe, named_recipe
from bitwright.recipe.options import Override, Placement, Selection, SmoothQuant
from bitwright.recipe.value import Recipe
from bitwright.recipe.weights import (
    AWQ,
    GPTQ,
    HQQ,
    Nearest,
    RoundingMethod,
    WeightOnly,
    WeightOverride,
)

__all__ = [
    "AWQ",
    "GPTQ",
    "HQQ",
    "MSE",
    "RECIPES",
    "TARGETS",
    "AdaQuant",
    "AdaRound",
    "CrossLayerEqualization",
    "Distribution",
    "Entropy",
    "FineTuning",
    "LayerwisePercentile",
    "Limits",
    "MinMSE",
    "MinMax",
    "Nearest",
    "NonOverflow",
    "Override",
    "Percentile",
    "Placement",
    "RangeMethod",
    "Recipe",
    "Rewrites",
    "RoundingMethod",
    "ScaleKind",
    "Selection",
    "Simulation",
    "SmoothQuant",
    "Target",
    "WeightOnly",
    "WeightOverride",
    "load_recipe",
    "named_recipe",
]
