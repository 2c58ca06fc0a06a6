"""The samples of a search, read when they are first needed, and what each of them is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bitwright.data import InputSpec
from bitwright.data.labelled import LabelledSamples, fingerprint_data, open_labelled
from bitwright.errors import DataError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.tuning.request import TuneRequest

__all__ = ["Parts", "TuneSamples", "split_parts"]

FINAL_SHARE = 0.2
MIN_FINAL = 50
MAX_CALIBRATION = 128
MIN_SAMPLES = 16
"""Samples that there must be to score models on."""


class Parts(NamedTuple):
    """Which samples are for what, each in a random order that is always the same."""

    calibration: tuple[int, ...]
    """To calibrate with, and to choose by their output error."""
    evaluation: tuple[int, ...]
    """What the metric is measured on during the search."""
    final: tuple[int, ...]
    """What the result is measured on; the search never sees them."""


def split_parts(count: int, *, calibrates: bool) -> Parts:
    """Divide samples: a fifth is for the end, 50 at least; some, where these are all, calibrate.

    >>> [len(part) for part in split_parts(400, calibrates=False)]
    [0, 320, 80]
    >>> [len(part) for part in split_parts(450, calibrates=True)]
    [128, 232, 90]
    """
    if count < (2 * MIN_SAMPLES if calibrates else MIN_SAMPLES):
        raise DataError(
            f"tuning needs {2 * MIN_SAMPLES if calibrates else MIN_SAMPLES} samples, to search "
            "with some and to report on others that the search has not seen, and there are "
            f"{count}; give more."
        )
    # Files often come class by class, and labels in turn: any regular division would see that.
    order = tuple(int(index) for index in np.random.default_rng(0).permutation(count))
    final = min(max(MIN_FINAL, round(FINAL_SHARE * count)), count // (4 if calibrates else 3))
    end = final + (min(MAX_CALIBRATION, count // 3) if calibrates else 0)
    return Parts(order[final:end], order[end:], order[:final])


class TuneSamples:
    """The samples of a request, read when they are first needed."""

    def __init__(self, request: TuneRequest, specs: Sequence[InputSpec]) -> None:
        self._request, self._specs = request, specs
        self.is_shared = request.eval_data is None
        """Whether the same data serves to calibrate and to evaluate."""

    @cached_property
    def samples(self) -> LabelledSamples:
        """The samples to evaluate with; where data is shared, all of them."""
        request = self._request
        return open_labelled(
            request.data if self.is_shared else request.eval_data,
            self._specs,
            labels=request.labels,
            limit=request.limit if self.is_shared else request.eval_limit,
            transform=request.transform,
            memory_budget=request.memory_budget,
        )

    @property
    def has_labels(self) -> bool:
        """Whether the samples come with anything beside the model's inputs."""
        return self._request.labels is not None or bool(self.samples.extra)

    @cached_property
    def parts(self) -> Parts:
        """Which samples are for what."""
        count = len(self.samples)
        return split_parts(count, calibrates=self.is_shared)

    def calibration(self) -> Calibration:
        """Return the data to calibrate with."""
        request = self._request
        data, limit, transform = request.data, request.limit, request.transform
        if self.is_shared:
            data = [self.samples.feeds(index) for index in self.parts.calibration]
            limit, transform = None, None
        return Calibration(
            data,
            limit,
            transform,
            holdout=False,
            memory_budget=request.memory_budget,
            engine=request.engine,
            progress=False,
        )

    @cached_property
    def fingerprint(self) -> str:
        """What tells the data apart from other data."""
        request = self._request
        known = [fingerprint_data(x) for x in (request.data, request.eval_data, request.labels)]
        if None in known:  # a stream: what it gave is what it was
            known = [fingerprint_data(list(self.samples)) or ""]
        text = f"{known} {request.limit} {request.eval_limit} {request.transform}"
        return hashlib.sha256(text.encode()).hexdigest()
