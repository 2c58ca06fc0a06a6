"""Latency of a model on this machine, as a user's program would see it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from bitwright.data import Sample
from bitwright.graph import open_session, run_session

__all__ = ["measure_latency"]

_SECONDS = 0.25
_MIN_RUNS, _MAX_RUNS = 5, 20


def measure_latency(
    model: ir.Model, sample: Sample, providers: Sequence[str] | None = None
) -> float:
    """Return the least milliseconds of a run in a quarter of a second, of five runs at least.

    Other programs on the machine make runs longer, never shorter.
    """
    session: Any = open_session(model, providers=providers, memory_arena=True)
    run_session(session, sample)
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _MIN_RUNS or (len(times) < _MAX_RUNS and time.perf_counter() < end):
        begun = time.perf_counter()
        run_session(session, sample)
        times.append(time.perf_counter() - begun)
    return 1000 * min(times)
