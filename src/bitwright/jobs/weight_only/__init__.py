"""Weights in few bits while activations stay float: RTN, GPTQ, AWQ and HQQ as one pipeline."""

from __future__ import annotations

from bitwright.jobs.weight_only.job import WeightJob
from bitwright.jobs.weight_only.layers import Site, weight_sites
from bitwright.jobs.weight_only.sequence import find_scaling, round_weights

__all__ = ["Site", "WeightJob", "find_scaling", "round_weights", "weight_sites"]
