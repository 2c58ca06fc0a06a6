"""Learn weights block by block, so that the quantized model comes closer to float."""

from __future__ import annotations

from bitwright.jobs.fine_tuning.block import BlockReport, Tuned, require_torch
from bitwright.jobs.fine_tuning.job import tune_job
from bitwright.jobs.fine_tuning.sequence import fine_tune

__all__ = ["BlockReport", "Tuned", "fine_tune", "require_torch", "tune_job"]
