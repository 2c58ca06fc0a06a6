"""Low-bit weights while activations stay float: RTN, GPTQ, AWQ and HQQ as one pipeline."""

from __future__ import annotations

from bitwright.jobs.weight_only.job import (
    make_weight_only_plan,
    quantize_weight_only,
    write_weight_only,
)

__all__ = ["make_weight_only_plan", "quantize_weight_only", "write_weight_only"]
