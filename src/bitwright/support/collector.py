"""Python's search for garbage, put off while a large structure is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep Python from looking for cycles of garbage where everything that is made stays.

    It would go through all objects of a graph of thousands of nodes, again and again while they
    are made: a fifth of the time of a job. For parts of a second only: cycles that hold arrays are
    not freed meanwhile. It can be a decorator, too.
    """
    if not gc.isenabled():  # within another, or the user's own wish
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_LARGE_GRAPH = 1_000
"""Number of nodes from which a graph takes more memory than a search for garbage takes time."""


def free_graphs(nodes: int) -> None:
    """Free graphs of so many nodes that nothing needs any more: their nodes hold each other."""
    if nodes >= _LARGE_GRAPH:
        gc.collect()


@contextmanager
def sparing_what_is_there() -> Iterator[None]:
    """Keep Python from looking through what there is already for garbage, again and again.

    Small graphs that are made and dropped beside large ones are still freed.
    """
    if gc.get_freeze_count():  # within another, or the user's own wish
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
