"""Low-bit weights while activations stay float: RTN, GPTQ, AWQ and HQQ as one pipeline."""

from __future__ import annotations

from bitwright.jobs.weight_only.job import WeightJob

__all__ = ["WeightJob"]
