"""A stream of checked samples; cached, limited, or with its images converted to NHWC."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from bitwright.data.specs import InputSpec, Sample, check_sample
from bitwright.errors import DataError, EmptyDataError

NamedSample: TypeAlias = tuple[Mapping[str, Any], str | None]
"""A sample before it is checked, and the name of the file that it is from."""


class Samples:
    """A stream of checked samples, with what is known of it in advance.

    `len_hint` is the number of samples where it is known, for a progress bar; `description` says
    what the data is, for a report; `repeatable` tells whether it can be read more than once.
    """

    def __init__(
        self,
        produce: Callable[[], Iterator[NamedSample]],
        specs: Sequence[InputSpec],
        *,
        description: str,
        len_hint: int | None = None,
        repeatable: bool = True,
        at: Callable[[int], NamedSample] | None = None,
    ) -> None:
        self.specs = tuple(specs)
        self.description = description
        self.len_hint = len_hint
        self.repeatable = repeatable
        self._produce = produce
        self._at = at
        self._limit: int | None = None
        self._started = False

    def limited(self, limit: int | None) -> Samples:
        """Return the first samples, as many as the limit allows."""
        if limit is None:
            return self
        if limit < 1:
            raise DataError(f"the limit on calibration samples must be at least 1, not {limit}.")
        found = copy(self)
        found._limit = limit
        found.len_hint = None if self.len_hint is None else min(limit, self.len_hint)
        return found

    @property
    def can_seek(self) -> bool:
        """Whether `read` gives a sample by its number."""
        return self._at is not None and self.len_hint is not None

    def read(self, index: int) -> Sample:
        """Return one sample, without those before it; only where `can_seek`."""
        assert self._at is not None
        sample, origin = self._at(index)
        return check_sample(sample, self.specs, index, origin=origin)

    def __iter__(self) -> Iterator[Sample]:
        if self._started and not self.repeatable:
            raise DataError(
                f"the calibration data ({self.description}) can be read only once and has been; "
                "give a list or files to read it again."
            )
        self._started = True
        return self._checked()

    def _checked(self) -> Iterator[Sample]:
        index = -1
        # islice stops before it asks for one more: a reader is never drained past the limit.
        for index, (sample, origin) in enumerate(islice(self._produce(), self._limit)):
            yield check_sample(sample, self.specs, index, origin=origin)
        if index < 0:
            raise EmptyDataError(
                f"the calibration data ({self.description}) has no samples; "
                "give at least one (a fresh generator or reader if it was used before)."
            )

    def __repr__(self) -> str:
        count = "?" if self.len_hint is None else self.len_hint
        return f"Samples({self.description!r}, len_hint={count})"


def cache_samples(samples: Samples, *, max_bytes: int | None = None) -> Samples:
    """Return the samples in a form that can be read again: themselves, or a copy in memory.

    A copy of more than `max_bytes`, where given, is refused.
    """
    if samples.repeatable:
        return samples
    cached: list[Sample] = []
    size = 0
    for sample in samples:
        size += sum(array.nbytes for array in sample.values())
        if max_bytes is not None and size > max_bytes:
            raise DataError(
                f"the calibration data ({samples.description}) can be read only once, two passes "
                f"need it, and it does not fit in the memory budget of {max_bytes:,} bytes; give "
                "a list or files, fewer samples, or a larger budget."
            )
        # A reader may fill the same buffer again.
        cached.append({name: array.copy() for name, array in sample.items()})
    return Samples(
        lambda: ((sample, None) for sample in cached),
        samples.specs,
        description=samples.description,
        len_hint=len(cached),
    )


def channels_first_specs(
    specs: Sequence[InputSpec], channels_last: Collection[str]
) -> tuple[InputSpec, ...]:
    """Return the inputs as they were before those in `channels_last` became NHWC."""
    return tuple(
        _permuted(spec, (0, 3, 1, 2)) if spec.name in channels_last else spec for spec in specs
    )


def to_channels_last(samples: Samples, channels_last: Collection[str]) -> Samples:
    """Return the same stream with the arrays for these inputs converted from NCHW to NHWC."""
    if not channels_last:
        return samples

    def produce() -> Iterator[tuple[Sample, None]]:
        for sample in samples:
            yield turned(sample), None

    def turned(sample: Sample) -> Sample:
        moved = {k: v.transpose(0, 2, 3, 1).copy() for k, v in sample.items() if k in channels_last}
        return sample | moved

    return Samples(
        produce,
        [
            _permuted(spec, (0, 2, 3, 1)) if spec.name in channels_last else spec
            for spec in samples.specs
        ],
        description=samples.description,
        len_hint=samples.len_hint,
        repeatable=samples.repeatable,
        at=(lambda index: (turned(samples.read(index)), None)) if samples.can_seek else None,
    )


def _permuted(spec: InputSpec, order: Sequence[int]) -> InputSpec:
    shape = spec.shape
    return spec if shape is None else replace(spec, shape=tuple(shape[axis] for axis in order))
