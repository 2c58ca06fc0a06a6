"""The samples of a search, read when they are first needed, and what each of them is for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

from bitwright.data import InputSpec
from bitwright.data.labelled import LabelledSamples, fingerprint_data, open_labelled
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.tuning.splits import Parts, split_all, split_evaluation

__all__ = ["TuneSamples"]


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
        return split_all(count) if self.is_shared else split_evaluation(count)

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
