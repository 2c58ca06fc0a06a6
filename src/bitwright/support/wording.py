"""Small words in sentences that programs write."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """Return how many there are of a thing.

    >>> counted(1, "holdout sample"), counted(8, "holdout sample"), counted(0, "node")
    ('1 holdout sample', '8 holdout samples', '0 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
