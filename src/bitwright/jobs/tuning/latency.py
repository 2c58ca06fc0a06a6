"""Latency of models on this machine, as a user's program would see it, each beside float."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.data import Sample
from bitwright.jobs.improve.journal import Journal
from bitwright.run import open_session, run_session

__all__ = ["LatencyMeter", "ModelTimes", "Timing", "middle_sized", "summarize_turns"]

_SECONDS = 0.15
_MIN_RUNS, _MAX_RUNS = 5, 20
_STARVED = 1.5
"""Seconds that pass for one that any core works, from which on others have the cores."""


class Timing(NamedTuple):
    """Milliseconds of a model over some turns.

    >>> Timing(2.0, 2.1, 2.5).scaled(0.5)
    Timing(least=1.0, low=1.05, high=1.25)
    """

    least: float
    """What counts: other programs make runs longer, never shorter."""
    low: float
    """A tenth of the runs took less."""
    high: float
    """A tenth of the runs took more."""

    def scaled(self, factor: float) -> Timing:
        """Return so many times this."""
        return Timing(self.least * factor, self.low * factor, self.high * factor)


def middle_sized(samples: Sequence[Sample]) -> Sample:
    """Return the sample to time models on: the first of those that half of the others are below.

    >>> middle_sized([{"x": np.zeros(size)} for size in (9, 1, 4)])["x"].size
    4
    """
    sizes = [sum(np.size(array) for array in sample.values()) for sample in samples]
    return samples[sizes.index(sorted(sizes)[len(sizes) // 2])]


class LatencyMeter:
    """Measures models in turns with one that they are compared with.

    The machine is slower at one time than at another: two models that ran at different times
    differ by that. So each of them runs in turns with the float model, and their ratio is what is
    measured; the float model has one latency for all of them.
    """

    def __init__(
        self, reference: ir.Model, sample: Sample, providers: Sequence[str] | None = None
    ) -> None:
        """Open the model that others are measured beside."""
        self._sample, self._providers = sample, providers
        self._on_cpu = not providers or list(providers) == ["CPUExecutionProvider"]
        self._reference = self._open(reference)

    def measure(self, model: ir.Model | None = None) -> tuple[Timing, Timing]:
        """Return the times of the reference and of the model, which ran in turns."""
        sessions = [self._reference] if model is None else [self._reference, self._open(model)]
        times: list[list[tuple[float, float]]] = [[] for _ in sessions]
        begun, worked = time.perf_counter(), time.process_time()
        for run in range(_MAX_RUNS):
            # Seconds that others had the cores for are not counted: the fewer runs there would be.
            seconds = min(time.perf_counter() - begun, time.process_time() - worked)
            if run >= _MIN_RUNS and (seconds > _SECONDS * len(sessions) or _is_clear(times)):
                break
            for found, session in zip(times, sessions, strict=True):
                found.append(self._time(session))
        summaries = summarize_turns(times, on_cpu=self._on_cpu)
        return summaries[0], summaries[-1]

    def _open(self, model: ir.Model) -> Any:
        session: Any = open_session(model, providers=self._providers, memory_arena=True)
        run_session(session, self._sample)
        return session

    def _time(self, session: Any) -> tuple[float, float]:
        """Return the seconds of a run, and the seconds of all cores together."""
        begun, used = time.perf_counter(), time.process_time()
        run_session(session, self._sample)
        return time.perf_counter() - begun, time.process_time() - used


class ModelTimes:
    """Milliseconds of models: those of float, which has one time for all, times their ratio."""

    def __init__(self, journal: Journal, open_meter: Callable[[], LatencyMeter]) -> None:
        """Take what opens the meter, once a time is asked for that is not known."""
        self._journal, self._open_meter = journal, open_meter

    @cached_property
    def _meter(self) -> LatencyMeter:
        return self._open_meter()

    def of(self, model: ir.Model) -> Timing:
        """Return the milliseconds of a model."""
        beside, found = self._meter.measure(model)
        return found.scaled(self.of_float(beside).least / beside.least)

    def of_float(self, measured: Timing | None = None) -> Timing:
        """Return the milliseconds of the float model, as they were first measured."""
        name = "cost/speed/float"
        known = self._journal.get(name)
        if known is None:
            known = self._meter.measure()[0] if measured is None else measured
            self._journal[name] = known
        return Timing(*known)


def _is_clear(times: Sequence[Sequence[tuple[float, float]]]) -> bool:
    """Whether of two models each run of one took longer than any of the other, by either clock.

    >>> _is_clear([[(2.0, 1.9), (2.2, 2.1)], [(1.0, 0.9), (1.8, 1.7)]])
    True
    >>> _is_clear([[(2.0, 1.9), (2.2, 2.1)], [(1.0, 0.9), (2.1, 1.7)]])
    False
    """
    if len(times) < 2:
        return False
    clocks = [[[pair[clock] for pair in one] for one in times] for clock in (0, 1)]
    return all(min(one) > max(other) or min(other) > max(one) for one, other in clocks)


def summarize_turns(
    times: Sequence[Sequence[tuple[float, float]]], *, on_cpu: bool
) -> list[Timing]:
    """Return the times of each model, from the seconds of its runs and those the cores worked.

    Other programs on the machine make runs longer, never shorter: the least counts. Where they
    take the cores away for most of the time, no run is without them; the time that the cores
    worked for it tells two models apart even then.

    >>> found = summarize_turns([[(0.5, 0.02), (0.3, 0.03)], [(0.2, 0.01)] * 2], on_cpu=True)
    >>> [timing.least for timing in found]
    [20.0, 10.0]
    """
    starved = sum(sum(passed for passed, _ in one) for one in times) > _STARVED * sum(
        sum(used for _, used in one) for one in times
    )
    kind = 1 if starved and on_cpu else 0
    return [_summarize([1000 * pair[kind] for pair in one]) for one in times]


def _summarize(milliseconds: Sequence[float]) -> Timing:
    low, high = np.percentile(milliseconds, [10, 90])
    return Timing(min(milliseconds), float(low), float(high))
