"""Progress of long work: a bar on a terminal, or calls of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "ProgressUpdate", "show_progress"]

Progress = bool | Callable[[int, int | None], None]


class ProgressUpdate(Protocol):
    """A function that takes how much is done, and a detail to be shown beside the bar."""

    def __call__(self, done: int, detail: str = "", /) -> None:
        """Show it."""


@contextmanager
def show_progress(progress: Progress, what: str, total: int | None) -> Iterator[ProgressUpdate]:
    """Give a function that takes how much is done, out of `total` where that is known.

    >>> seen = []
    >>> with show_progress(lambda done, total: seen.append((done, total)), "Counting", 2) as update:
    ...     update(1)
    >>> seen
    [(1, 2)]
    """
    if callable(progress):
        yield lambda done, _="": progress(done, total)
    elif progress and sys.stderr.isatty():
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
            yield lambda done, detail="": bar.update(task, completed=done, detail=detail)
    else:
        yield lambda done, _="": None
