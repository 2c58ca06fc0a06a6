"""Split samples into calibration and holdout, and calibration into folds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, NamedTuple

from bitwright.data.references import SampleReference, read_sample
from bitwright.data.samples import Samples
from bitwright.data.specs import Sample
from bitwright.errors import DataError

_EVERY, _MOST = 8, 8
"""Every eighth sample is held out, and at most eight are."""
_MAX_FIRST = 2
FOLDS = 4
"""What is chosen by three of four folds is judged on the fourth."""


class HoldoutSplit:
    """The calibration part of a stream; every eighth sample gathers in `holdout`, at most eight.

    `first` has up to two samples of a stream that was too short for a holdout, and is empty
    otherwise; `evaluation` is whichever of the two there is.
    """

    def __init__(self, samples: Iterable[Any], *, most: int = _MOST) -> None:
        if most < 0:
            raise DataError(f"most={most} is not a number of samples; give 0 or more.")
        self._samples = samples
        self._most = most
        self.holdout: list[Sample] = []
        self.first: list[Sample] = []
        self.count = 0
        """How many samples the last pass gave to calibration."""

    @property
    def description(self) -> str:
        """What the data is, in words."""
        return str(getattr(self._samples, "description", "samples"))

    @property
    def evaluation(self) -> list[Sample]:
        """The samples to measure with: the holdout, else the first ones."""
        return self.holdout or self.first

    @property
    def len_hint(self) -> int | None:
        """How many samples are left for calibration, where that is known."""
        total = getattr(self._samples, "len_hint", None)
        if total is None and isinstance(self._samples, Sized):
            total = len(self._samples)
        return None if total is None else int(total) - min(int(total) // _EVERY, self._most)

    def __iter__(self) -> Iterator[Any]:
        self.holdout, self.first, self.count = [], [], 0
        for index, sample in enumerate(self._samples):
            if index % _EVERY == _EVERY - 1 and len(self.holdout) < self._most:
                self.holdout.append(_copy(read_sample(sample)))
                self.first = []
                continue
            if not self.holdout and len(self.first) < _MAX_FIRST:
                self.first.append(_copy(read_sample(sample)))
            self.count += 1
            yield sample if isinstance(sample, SampleReference) else dict(sample)


def _copy(sample: Mapping[str, Any]) -> Sample:
    # A source may reuse its buffers, and a view would hold a whole stacked file in memory.
    return {name: array.copy() for name, array in sample.items()}


class Split(NamedTuple):
    """Samples to calibrate with, whole and in folds, and samples to measure with."""

    calibration: Samples
    folds: tuple[Samples, ...]
    """What is calibrated on all but one is judged on that."""
    but_last: Samples
    """All folds but the last."""
    holdout: Samples
    """To measure the result with; no calibration has them."""


def split_samples(samples: Samples, *, most: int = _MOST) -> Split:
    """Divide samples that can be read again into calibration, in folds, and holdout.

    The holdout is that of `HoldoutSplit`; of the rest, each fold has every fourth.
    """

    def part(index: int) -> int:
        """Return the number of a fold, or what follows them for the holdout."""
        held = min((index + 1) // _EVERY, most)
        if index % _EVERY == _EVERY - 1 and index < _EVERY * most:
            return FOLDS
        return (index - held) % FOLDS

    def select(*wanted: int) -> Samples:
        def produce() -> Iterator[tuple[Sample, str | None]]:
            for index, sample in enumerate(islice(samples, last)):
                if part(index) in wanted:
                    yield sample, None

        last = _EVERY * most if wanted == (FOLDS,) else None
        total = samples.len_hint
        count = None if total is None else sum(part(i) in wanted for i in range(total))
        return Samples(produce, samples.specs, description=samples.description, len_hint=count)

    folds = tuple(map(select, range(FOLDS)))
    but_last = select(*range(FOLDS - 1))
    return Split(select(*range(FOLDS)), folds, but_last, select(FOLDS))
