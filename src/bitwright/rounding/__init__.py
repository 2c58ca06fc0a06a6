"""From float weights and a plan to integers."""

from __future__ import annotations

from bitwright.rounding.bias_correction import (
    BiasSite,
    add_to_bias,
    find_bias_sites,
    mean_error,
)
from bitwright.rounding.gptq import HessianFactor, factor_hessian, gptq
from bitwright.rounding.hqq import hqq
from bitwright.rounding.nearest import round_to_nearest
from bitwright.rounding.planned import round_as_planned
from bitwright.rounding.scale_estimation import estimate_scales, refine
from bitwright.rounding.squant import round_by_squant
from bitwright.rounding.store import BlockStore

__all__ = [
    "BiasSite",
    "BlockStore",
    "HessianFactor",
    "add_to_bias",
    "estimate_scales",
    "factor_hessian",
    "find_bias_sites",
    "gptq",
    "hqq",
    "mean_error",
    "refine",
    "round_as_planned",
    "round_by_squant",
    "round_to_nearest",
]
