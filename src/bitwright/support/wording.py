"""Numbers in words: counts with their nouns, and sizes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "show_bytes", "show_milliseconds", "show_percent"]


def counted(count: int, noun: str) -> str:
    """Return how many there are of a thing.

    >>> counted(1, "holdout sample"), counted(8, "holdout sample"), counted(0, "node")
    ('1 holdout sample', '8 holdout samples', '0 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_bytes(size: int) -> str:
    """Return a size for a reader.

    >>> show_bytes(390837), show_bytes(12)
    ('390.8 kB', '12 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def show_milliseconds(time: float, spread: Sequence[float] | None) -> str:
    """Return a time with its spread; one that was not measured has none.

    >>> show_milliseconds(2.61, (2.648, 3.0)), show_milliseconds(3.5, None)
    ('2.61 ms (2.65 to 3)', '3.5 ms, predicted')
    """
    if spread is None:
        return f"{time:.3g} ms, predicted"
    return f"{time:.3g} ms ({spread[0]:.3g} to {spread[1]:.3g})"


def show_percent(share: float) -> str:
    """Return a share as a number of percent with three digits that count.

    >>> show_percent(0.021), show_percent(1.0)
    ('2.10', '100')
    """
    return f"{100 * share:#.3g}".rstrip(".")
