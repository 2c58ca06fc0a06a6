"""What the user asks for: frozen values with names, the same in Python, YAML and JSON."""

from __future__ import annotations

from bitwright.recipe.codec import convert, encode
from bitwright.recipe.hardware import CrossLayerEqualization, Limits, Rewrites, Simulation
from bitwright.recipe.methods import (
    MSE,
    Distribution,
    Entropy,
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

__all__ = [
    "MSE",
    "RECIPES",
    "TARGETS",
    "CrossLayerEqualization",
    "Distribution",
    "Entropy",
    "Limits",
    "MinMSE",
    "MinMax",
    "NonOverflow",
    "Override",
    "Percentile",
    "Placement",
    "RangeMethod",
    "Recipe",
    "Rewrites",
    "ScaleKind",
    "Selection",
    "Simulation",
    "SmoothQuant",
    "Target",
    "convert",
    "encode",
    "load_recipe",
    "named_recipe",
]
