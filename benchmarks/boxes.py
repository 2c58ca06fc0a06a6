"""Boxes around what a detector finds, and how many of them are right: numpy alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the intersection over the union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (both - width * height)


def match(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> list[int]:
    """Return how many boxes match, how many were found, and how many there are."""
    free, hits = list(wanted), 0
    for box in found:
        best = max(free, key=lambda other: overlap(box, other), default=None)
        if best is not None and overlap(box, best) >= 0.5:
            free.remove(best)
            hits += 1
    return [hits, len(found), len(wanted)]


def found_objects(outputs: list[np.ndarray]) -> list[tuple[float, ...]]:
    """Return boxes above a score of 0.2, the less sure of two alike left out."""
    rows = outputs[0][0].T
    classes, scores = rows[:, 4:].argmax(1), rows[:, 4:].max(1)
    kept: list[tuple[float, ...]] = []
    for index in np.argsort(-scores):
        if scores[index] < 0.2:
            break
        x, y, width, height = rows[index, :4].tolist()
        # Classes lie in places far apart, so that only boxes of the same class overlap.
        x += 10_000 * int(classes[index])
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        if all(overlap(box, other) < 0.45 for other in kept):
            kept.append(box)
    return kept


def f1_of_objects(outputs: np.ndarray, wanted: np.ndarray) -> float:
    """Return the harmonic mean of precision and recall of one picture; 1 where there is nothing."""
    hits, found, there = match(found_objects([outputs]), wanted.tolist())
    return 2 * hits / (found + there) if found + there else 1.0
