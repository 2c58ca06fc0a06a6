"""Matrices that are read row by row, by several threads at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from bitwright.numerics.arrays import Arrays
from bitwright.support import Array, count_cores

RowReader = Callable[[int, int], Array]
"""Gives the rows of a matrix from the first to before the second; threads call it at once."""

_NUMBERS_AT_ONCE = 1 << 20
"""Numbers that are read at once."""
_MAX_THREADS = 8


def map_rows(
    work: Callable[[int, int], None],
    rows: int,
    columns: int,
    *,
    unit: int = 1,
    threads: int | None = None,
) -> None:
    """Call `work(start, stop)` for all rows, in pieces of whole `unit`s, in several threads."""
    step = max(unit, _NUMBERS_AT_ONCE // max(columns, 1) // unit * unit)
    starts = range(0, rows, step)
    pool = _pool_of(max(1, min(threads or count_threads(), len(starts))))
    for _ in pool.map(lambda start: work(start, min(start + step, rows)), starts):
        pass


@cache
def _pool_of(threads: int) -> ThreadPoolExecutor:
    """Return threads that stay: to start some takes as long as to round a hundred rows."""
    return ThreadPoolExecutor(threads)


# A forked process has no threads but the one that forked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool_of.cache_clear)


def load_rows(read: RowReader, shape: tuple[int, int], xp: Arrays) -> Any:
    """Return a matrix in float32 where `xp` computes."""
    whole = xp.empty(*shape)

    def load(start: int, stop: int) -> None:
        whole[start:stop] = xp.array(read(start, stop))

    map_rows(load, *shape)
    return whole


def count_threads() -> int:
    """Return how many threads may compute here, by the variable that other libraries read too."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return min(int(asked), _MAX_THREADS)
    return min(count_cores(), _MAX_THREADS)
