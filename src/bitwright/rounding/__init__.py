"""From float weights and a plan to integers."""

from __future__ import annotations

from bitwright.rounding.gptq import HessianFactor, factor_hessian, gptq
from bitwright.rounding.nearest import round_to_nearest
from bitwright.rounding.store import BlockStore

__all__ = ["BlockStore", "HessianFactor", "factor_hessian", "gptq", "round_to_nearest"]
