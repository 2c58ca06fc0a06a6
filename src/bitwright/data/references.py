"""References to samples on shared storage: workers of a cluster read them there themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bitwright.data.samples import Samples, to_channels_last
from bitwright.data.sources import open_data, paths_of
from bitwright.data.specs import InputSpec, Sample


@dataclass(frozen=True, eq=False)
class _Source:
    """How to open data by its path; each process opens it once."""

    data: Any
    specs: tuple[InputSpec, ...]
    limit: int | None
    transform: Any
    channels_last: tuple[str, ...]

    def open(self) -> Samples:
        key = repr(self)
        if key not in _OPENED:
            _OPENED.clear()  # one at a time: what was read before is done
            read = open_data(self.data, self.specs, limit=self.limit, transform=self.transform)
            _OPENED[key] = to_channels_last(read, self.channels_last)
        return _OPENED[key]


_OPENED: dict[str, Samples] = {}


class SampleReference(NamedTuple):
    """One sample of data that lies on storage which all machines see."""

    source: _Source
    place: int

    def read(self) -> Sample:
        """Return the sample."""
        return self.source.open().read(self.place)


class SampleReferences(Sequence[SampleReference]):
    """References to all samples of some data, in their order."""

    def __init__(self, source: _Source, samples: Samples) -> None:
        self._source = source
        self.description = samples.description
        self.len_hint = samples.len_hint

    def __len__(self) -> int:
        return self.len_hint or 0

    def __getitem__(self, index: int) -> SampleReference:  # type: ignore[override]  # no slices
        if not 0 <= index < len(self):
            raise IndexError(index)
        return SampleReference(self._source, index)


def refer_to(
    data: Any,
    specs: Sequence[InputSpec],
    *,
    limit: int | None = None,
    transform: Any = None,
    channels_last: Iterable[str] = (),
) -> SampleReferences | None:
    """Return references to the samples of files; None where they must be read one after another.

    That is for images and for `.npy` files, whose samples are found by their number.
    """
    paths = paths_of(data)
    given = data if isinstance(data, list | tuple) else [data]
    if not paths or len(paths) != len(given) or callable(transform):
        return None
    absolute = [str(Path(path).absolute()) for path in paths]
    source = _Source(
        absolute if isinstance(data, list | tuple) else absolute[0],
        tuple(specs),
        limit,
        transform,
        tuple(channels_last),
    )
    samples = source.open()
    if not samples.can_seek:
        return None
    return SampleReferences(source, samples)


def read_sample(sample: Sample | SampleReference) -> Sample:
    """Return a sample, read from storage where it is a reference."""
    return sample.read() if isinstance(sample, SampleReference) else sample


def read_samples(samples: Iterable[Any]) -> Iterator[Sample]:
    """Yield samples; references are read now."""
    for sample in samples:
        yield read_sample(sample)
