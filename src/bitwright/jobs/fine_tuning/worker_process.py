"""The worker process of fine-tuning: learns segments, and stores what it learned."""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from bitwright.graph import load_model
from bitwright.jobs.fine_tuning.checkpoints import Checkpoints
from bitwright.jobs.fine_tuning.segment import SegmentLearner
from bitwright.jobs.fine_tuning.workers import one_thread
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning
from bitwright.run.spool import SharedRow

__all__ = ["Worker"]


class Worker:
    """One model with its segments, and the store that they go to."""

    def __init__(self) -> None:
        # Ctrl-C goes to all processes of a terminal; the one that asks decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def open(
        self, model: str, plan: str, method: dict[str, Any], device: str, store: str, job: str
    ) -> None:
        """Get ready."""
        kind: FineTuning = msgspec.convert(method, FineTuning)
        self._learner = SegmentLearner(load_model(model), QuantPlan.load(plan), kind, device)
        self._store = Checkpoints(store, job=job)

    def learn(
        self, index: int, name: str, quantized: dict[str, Any], floats: dict[str, Any]
    ) -> None:
        """Learn a segment and store it."""
        rows = (
            {tensor: msgspec.convert(row, SharedRow) for tensor, row in side.items()}
            for side in (quantized, floats)
        )
        with one_thread():
            self._store.put(name, self._learner.learn(index, *rows))
