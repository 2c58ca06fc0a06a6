"""The process that learns blocks for another: requests in lines of JSON, answers in lines.

What it learns goes into the store; an answer only says that it is there, or what went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, TextIO

import msgspec

from bitwright.fine_tuning.block import BlockLearner
from bitwright.fine_tuning.kept import LearnedStore
from bitwright.fine_tuning.spreading import one_thread
from bitwright.graph import load_model
from bitwright.observe.spool import SharedRow
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning

__all__ = ["serve"]


class _Worker:
    """One model with its blocks, and the store that they go to."""

    def open(
        self, model: str, plan: str, method: dict[str, Any], device: str, store: str, job: str
    ) -> None:
        """Get ready."""
        kind: FineTuning = msgspec.convert(method, FineTuning)
        self._learner = BlockLearner(load_model(model), QuantPlan.load(plan), kind, device)
        self._store = LearnedStore(store, job=job)

    def learn(
        self, index: int, name: str, quantized: dict[str, Any], floats: dict[str, Any]
    ) -> None:
        """Learn a block and store it."""
        rows = (
            {tensor: msgspec.convert(row, SharedRow) for tensor, row in lane.items()}
            for lane in (quantized, floats)
        )
        with one_thread():
            self._store.put(name, self._learner.learn(index, *rows))


def serve() -> None:
    """Answer until nobody asks any more."""
    # Ctrl-C goes to all processes of a terminal; the one that asks decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever a library prints goes to the other stream; this one is for answers.
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _answer(sys.stdin, own)


def _answer(requests: TextIO, answers: TextIO) -> None:
    worker = _Worker()
    for line in requests:
        request = json.loads(line)
        try:
            getattr(worker, request.pop("do"))(**request)
            answer = {}
        except Exception as error:  # noqa: BLE001 - the one that asked tells the user what it was
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
