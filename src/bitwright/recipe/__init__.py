"""Recipes: how to quantize, as frozen values that are the same in Python, YAML and JSON."""

# ruff: noqa: F403 - each module lists in `__all__` what is had from here, and nothing else does
from bitwright.recipe import (
    emulate,
    finetuning,
    hardware,
    methods,
    named,
    options,
    overrides,
    value,
    weights,
)
from bitwright.recipe.emulate import *
from bitwright.recipe.finetuning import *
from bitwright.recipe.hardware import *
from bitwright.recipe.methods import *
from bitwright.recipe.named import *
from bitwright.recipe.options import *
from bitwright.recipe.overrides import *
from bitwright.recipe.value import *
from bitwright.recipe.weights import *

__all__: list[str] = []
__all__ += emulate.__all__
__all__ += finetuning.__all__
__all__ += hardware.__all__
__all__ += methods.__all__
__all__ += named.__all__
__all__ += options.__all__
__all__ += overrides.__all__
__all__ += value.__all__
__all__ += weights.__all__
