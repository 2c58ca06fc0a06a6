"""Learn weights segment by segment, so that the quantized model comes closer to float."""

from __future__ import annotations

from bitwright.jobs.fine_tuning.segment import SegmentReport, Tuned, require_torch
from bitwright.jobs.fine_tuning.sequence import fine_tune, fine_tune_weights

__all__ = ["SegmentReport", "Tuned", "fine_tune", "fine_tune_weights", "require_torch"]
