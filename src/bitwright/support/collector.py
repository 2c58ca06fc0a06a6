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
