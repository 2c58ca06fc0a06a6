"""Weights in few bits while activations stay float: RTN, GPTQ, AWQ and HQQ as one pipeline."""

from __future__ import annotations

from bitwright.weight_only.job import WeightJob
from bitwright.weight_only.sequence import find_scaling, round_weights
from bitwright.weight_only.sites import Site, weight_sites

__all__ = ["Site", "WeightJob", "find_scaling", "round_weights", "weight_sites"]
