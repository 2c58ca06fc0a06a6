"""A background thread that reads the tensors of one run while the next is being computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy.typing as npt

__all__ = ["BackgroundReader"]

Values = Mapping[str, npt.NDArray[Any]]


class BackgroundReader:
    """Calls a function with each set of arrays, one set behind: at most two are in memory.

    >>> seen = []
    >>> with BackgroundReader(lambda values: seen.append(sorted(values))) as reader:
    ...     reader.push({"x": None})
    >>> seen
    [['x']]
    """

    def __init__(self, look: Callable[[Values], None]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bitwright-compare")
        self._pending: Future[None] | None = None

    def push(self, values: Values) -> None:
        """Wait for the set before, and start with this one."""
        self._drain()
        self._pending = self._pool.submit(self._look, values)

    def _drain(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> BackgroundReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._drain()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
