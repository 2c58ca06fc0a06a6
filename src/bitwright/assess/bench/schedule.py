"""Interleaved runs of several models, so that a machine that slows down slows all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Runner", "run_interleaved"]

_ROUNDS = 10


class Runner(Protocol):
    """What can be timed; `ModelProcess` is one."""

    def burst(self, *, runs: int | None = None, seconds: float = 0.0) -> list[float]:
        """Run so many times, or else so long, and return the seconds of each run."""


def run_interleaved(
    runners: Sequence[Runner],
    *,
    runs: int | None,
    seconds: float,
    on_round: Callable[[int], None] = lambda done: None,
) -> list[list[float]]:
    """Return the seconds of every run, of each runner.

    Time goes in ten rounds; in each round every runner gets one burst, forwards in one round and
    backwards in the next, so that none always comes first. With `runs` each runner runs exactly so
    many times; otherwise as often as fits into `seconds`. `on_round` hears which is over.

    >>> class Clock:
    ...     def burst(self, *, runs=None, seconds=0.0):
    ...         return [0.001] * (runs or 3)
    >>> [len(times) for times in run_interleaved([Clock(), Clock()], runs=25, seconds=0)]
    [25, 25]
    """
    times: list[list[float]] = [[] for _ in runners]
    rounds = _ROUNDS if runs is None else min(_ROUNDS, runs)
    order = list(enumerate(runners))
    for current in range(rounds):
        for place, runner in order if current % 2 == 0 else reversed(order):
            if runs is not None:
                share = math.ceil((runs - len(times[place])) / (rounds - current))
                times[place] += runner.burst(runs=share)
            elif sum(times[place]) < seconds or not times[place]:
                times[place] += runner.burst(seconds=seconds / rounds)
        on_round(current + 1)
    return times
