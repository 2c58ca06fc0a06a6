"""How many threads the sessions of this process use, where several processes share a machine."""

from __future__ import annotations

import os

_limits: list[int] = []


def limit_threads(count: int) -> None:
    """Let each session have so many threads from now on, unless it is asked for others."""
    _limits[:] = [count]


def default_threads() -> int | None:
    """Return the threads of a session; None: as many as there are cores.

    ONNX Runtime counts the cores of the machine, and not those that this process may use: pinned
    to one of two cores, its threads would take that one from each other while they wait.
    """
    if _limits:
        return _limits[0]
    cores = count_cores()
    return cores if cores < (os.cpu_count() or 1) else None


def count_cores() -> int:
    """Return the cores that this process may use: not all of a machine's, where it can say so."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1
