"""Learn weights segment by segment, so that the quantized model comes closer to float."""

from __future__ import annotations

from bitwright.jobs.fine_tuning.job import tune_job
from bitwright.jobs.fine_tuning.segment import SegmentReport, Tuned, require_torch
from bitwright.jobs.fine_tuning.sequence import fine_tune

__all__ = ["SegmentReport", "Tuned", "fine_tune", "require_torch", "tune_job"]
