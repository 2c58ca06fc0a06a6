"""Progress of long work: a bar on a terminal, lines in the log elsewhere, or a function's calls."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Protocol

from bitwright.support.wording import printable

LOGGER = logging.getLogger("bitwright.progress")

SECONDS_BETWEEN_LINES = 5.0
FEWEST_PACES = 3
"""Steps of which the time is known before the rest is estimated."""

Progress = bool | Callable[[int, int | None], None]


class ProgressUpdate(Protocol):
    """A function that takes how much is done, and a detail to be shown beside the bar."""

    def __call__(self, done: int, detail: str = "", /) -> None:
        """Show it."""


class ProgressLines:
    """A line in the log every few seconds, where there is no terminal for a bar."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = self._last = time.monotonic()
        self._done, self._before = 0, self._start
        self._paces: list[float] = []

    def __call__(self, done: int, total: int | None) -> None:
        """Take how much is done, out of `total` where that is known.

        What is left is taken to need the median time of what is done: the first of many weights,
        a table of embeddings, may take a hundred times as long as the others.
        """
        now = time.monotonic()
        if done > self._done:
            self._paces.append((now - self._before) / (done - self._done))
            self._done, self._before = done, now
        if now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        passed = now - self._start
        if not total:
            LOGGER.info("%s: %d done in %.0f s", self._what, done, passed)
        elif len(self._paces) >= FEWEST_PACES:
            rest = median(self._paces) * max(total - done, 0)
            LOGGER.info("%s: %d of %d, about %.0f s left", self._what, done, total, rest)
        else:
            LOGGER.info("%s: %d of %d, %.0f s so far", self._what, done, total, passed)


@contextmanager
def show_progress(progress: Progress, what: str, total: int | None) -> Iterator[ProgressUpdate]:
    """Give a function that takes how much is done, out of `total` where that is known."""
    if callable(progress):
        yield lambda done, _="": progress(done, total)
    elif progress and sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Remaining(),
            # Names of nodes are no markup.
            TextColumn("{task.fields[detail]}", markup=False),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total, detail="")
            yield lambda done, detail="": bar.update(task, completed=done, detail=printable(detail))
    elif progress:
        lines = ProgressLines(what)
        yield lambda done, _="": lines(done, total)
    else:
        yield lambda done, _="": None
