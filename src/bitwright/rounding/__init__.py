"""Rounding: float weights to integers, by nearest, SQuant, GPTQ or HQQ."""

from __future__ import annotations

from bitwright.rounding.bias_correction import (
    BiasedLayer,
    add_to_bias,
    find_biased_layers,
    mean_error,
)
from bitwright.rounding.gptq import HessianFactor, factor_hessian, gptq
from bitwright.rounding.hqq import hqq
from bitwright.rounding.nearest import round_to_nearest
from bitwright.rounding.planned import round_as_planned
from bitwright.rounding.refinement import refine
from bitwright.rounding.squant import round_by_squant
from bitwright.rounding.store import BlockStore

__all__ = [
    "BiasedLayer",
    "BlockStore",
    "HessianFactor",
    "add_to_bias",
    "factor_hessian",
    "find_biased_layers",
    "gptq",
    "hqq",
    "mean_error",
    "refine",
    "round_as_planned",
    "round_by_squant",
    "round_to_nearest",
]
