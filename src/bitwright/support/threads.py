"""How many threads the sessions of this process use, where several processes share a machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

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
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    return max(math.ceil(min(cores, _read_quota())), 1)


def limit_blas() -> None:
    """Let BLAS start no more threads than there are cores: they spin while they wait.

    It counts the cores of the machine, and not what a container has of them; it reads this when
    numpy is first loaded.
    """
    cores = count_cores()
    if cores < (os.cpu_count() or 1):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, str(cores))


_QUOTAS = ("cpu.max", "cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us")
"""Files of Linux that have the time that a container may take, and the period of it."""


def _read_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return how many cores' time a container has; infinity where it is not limited."""
    for files in _QUOTAS:
        try:
            words = " ".join((root / name).read_text() for name in files.split()).split()
            quota, period = map(float, words)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf
