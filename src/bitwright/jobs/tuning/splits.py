"""The parts of the data: to calibrate, to evaluate the search with, and to report on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bitwright.errors import DataError

__all__ = ["Parts", "split_all", "split_evaluation"]

FINAL_SHARE = 0.2
MIN_FINAL = 50
MAX_CALIBRATION = 128
MIN_SAMPLES = 16
"""Samples that there must be to evaluate with."""
_SEED = 0


class Parts(NamedTuple):
    """Which samples are for what, each in a random order that is always the same."""

    calibration: tuple[int, ...]
    """To calibrate with, and to choose by their output error."""
    evaluation: tuple[int, ...]
    """What the metric is measured on during the search."""
    final: tuple[int, ...]
    """What the result is measured on; the search never sees them."""


def split_evaluation(count: int) -> Parts:
    """Divide samples that none are calibrated on: a fifth is for the end, 50 at least.

    >>> parts = split_evaluation(400)
    >>> len(parts.evaluation), len(parts.final)
    (320, 80)
    """
    _refuse_few(count, MIN_SAMPLES)
    order = _order(count)
    final = _final(count, count // 3)
    return Parts((), order[final:], order[:final])


def split_all(count: int) -> Parts:
    """Divide samples that serve for everything.

    >>> [len(part) for part in split_all(450)]
    [128, 232, 90]
    """
    _refuse_few(count, 2 * MIN_SAMPLES)
    order = _order(count)
    final, calibration = _final(count, count // 4), min(MAX_CALIBRATION, count // 3)
    end = final + calibration
    return Parts(order[final:end], order[end:], order[:final])


def _final(count: int, most: int) -> int:
    return min(max(MIN_FINAL, round(FINAL_SHARE * count)), most)


def _order(count: int) -> tuple[int, ...]:
    # Files often come class by class, and labels in turn: any regular division would see that.
    return tuple(int(index) for index in np.random.default_rng(_SEED).permutation(count))


def _refuse_few(count: int, least: int) -> None:
    if count < least:
        raise DataError(
            f"tuning needs {least} samples, to search with some and to report on others that the "
            f"search has not seen, and there are {count}; give more."
        )
