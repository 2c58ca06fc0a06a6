"""Keep a few samples out of calibration, to measure the result on data it has not seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from bitwright.data.specs import Sample
from bitwright.errors import DataError

__all__ = ["HeldBack", "hold_back"]

_FIRST = 2


class HeldBack:
    """The calibration part of a stream; what was held back gathers in `held` as it is read.

    `first` has up to two samples of a stream that was too short to hold any back, and is empty
    otherwise; `evaluation` is whichever of the two there is.

    >>> import numpy as np
    >>> short = hold_back([{"x": np.array(number)} for number in range(3)])
    >>> len(list(short)), len(short.held), len(short.first)
    (3, 0, 2)
    """

    def __init__(self, samples: Iterable[Mapping[str, Any]], every: int, most: int) -> None:
        self._samples = samples
        self._every = every
        self._most = most
        self.held: list[Sample] = []
        self.first: list[Sample] = []

    @property
    def evaluation(self) -> list[Sample]:
        """The samples to measure with: those held back, else the first ones."""
        return self.held or self.first

    @property
    def len_hint(self) -> int | None:
        """How many samples are left for calibration, where that is known."""
        total = getattr(self._samples, "len_hint", None)
        if total is None and isinstance(self._samples, Sized):
            total = len(self._samples)
        return None if total is None else int(total) - min(int(total) // self._every, self._most)

    def __iter__(self) -> Iterator[Sample]:
        self.held, self.first = [], []
        for index, sample in enumerate(self._samples):
            if index % self._every == self._every - 1 and len(self.held) < self._most:
                self.held.append(_keep(sample))
                self.first = []
                continue
            if not self.held and len(self.first) < _FIRST:
                self.first.append(_keep(sample))
            yield dict(sample)


def _keep(sample: Mapping[str, Any]) -> Sample:
    # A source may reuse its buffers, and a view would hold a whole stacked file in memory.
    return {name: array.copy() for name, array in sample.items()}


def hold_back(samples: Iterable[Mapping[str, Any]], *, every: int = 8, most: int = 8) -> HeldBack:
    """Divert every eighth sample (number 7, 15, …) of a stream, at most eight, from calibration.

    >>> import numpy as np
    >>> stream = hold_back([{"x": np.array(number)} for number in range(10)])
    >>> [int(sample["x"]) for sample in stream]
    [0, 1, 2, 3, 4, 5, 6, 8, 9]
    >>> [int(sample["x"]) for sample in stream.held]
    [7]
    """
    if every < 2:
        raise DataError(
            f"every={every} would hold back all calibration data; give 2 or more (8 is usual)."
        )
    if most < 0:
        raise DataError(f"most={most} is not a number of samples; give 0 or more.")
    return HeldBack(samples, every, most)
