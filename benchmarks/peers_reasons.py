"""Why a peer is better than we are somewhere; the sentences of `peers.py`'s page."""

from __future__ import annotations

from accuracy import Row


def explain(wins: list[tuple[Row, str]], ours: dict[str, Row]) -> list[str]:
    """Return a list item for each tool and column that a peer won, with the reason."""
    return [f"* {row.model}, {row.tool}: {column}" for row, column in wins]
