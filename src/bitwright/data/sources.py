"""Open calibration data as a stream of checked samples; cache it, or convert it to NHWC."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.files import FileSamples, open_path, open_paths
from bitwright.data.image_preprocess import ImagePreprocess
from bitwright.data.images import is_image, open_images
from bitwright.data.items import ACCEPTED, name_item
from bitwright.data.specs import Array, InputSpec, Sample, as_array, check_sample, split_stack
from bitwright.errors import DataError, EmptyDataError
from bitwright.support.wording import counted

__all__ = ["Samples", "cache_samples", "channels_first_specs", "open_source", "to_channels_last"]


class Samples:
    """A stream of checked samples, with what is known of it in advance.

    `len_hint` is the number of samples where it is known, for a progress bar; `description` says
    what the data is, for a report; `repeatable` tells whether it can be read more than once.

    >>> spec = InputSpec("x", np.dtype("float32"), ("batch", 2))
    >>> samples = open_source([{"x": np.zeros((1, 2), np.float32)}] * 3, [spec], limit=2)
    >>> len(list(samples)), samples.len_hint, samples.description
    (2, 2, 'list of samples')
    """

    def __init__(
        self,
        produce: Callable[[], Iterator[tuple[Mapping[str, Any], str | None]]],
        specs: Sequence[InputSpec],
        *,
        description: str,
        len_hint: int | None = None,
        limit: int | None = None,
        repeatable: bool = True,
        at: Callable[[int], tuple[Mapping[str, Any], str | None]] | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise DataError(f"the limit on calibration samples must be at least 1, not {limit}.")
        if limit is not None and len_hint is not None:
            len_hint = min(limit, len_hint)
        self.specs = tuple(specs)
        self.description = description
        self.len_hint = len_hint
        self.repeatable = repeatable
        self._produce = produce
        self._at = at
        self._limit = limit
        self._started = False

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


def open_source(
    source: Any, specs: Sequence[InputSpec], *, limit: int | None = None, transform: Any = None
) -> Samples:
    """Open data that is there, in files or in memory, for a model.

    `transform` is an `ImagePreprocess`, a function, or None.
    """
    specs = tuple(specs)
    found = _open_files(source, specs, transform)
    if found is not None:
        return Samples(
            found.produce,
            specs,
            description=found.description,
            len_hint=found.count,
            limit=limit,
            at=found.at,
        )
    if source is None:
        raise DataError(f"there is no calibration data; {ACCEPTED}.")
    return _open_object(source, specs, limit, transform)


def _open_object(
    source: Any, specs: tuple[InputSpec, ...], limit: int | None, transform: Any
) -> Samples:
    """Open arrays, a reader, or whatever gives samples or batches one after the other."""
    if isinstance(source, Mapping) and all(hasattr(part, "features") for part in source.values()):
        parts = ", ".join(map(str, source))
        first = next(iter(source), "train")
        raise DataError(
            f"the dataset has parts ({parts}); give one of them, such as dataset[{first!r}]."
        )
    if isinstance(source, Mapping) or _is_single_array(source):
        return _open_stack(source, specs, limit, transform)
    if callable(getattr(source, "get_next", None)):
        return Samples(
            lambda: _named(_drain_reader(source), specs, transform, loader=False),
            specs,
            description=f"{type(source).__name__} (get_next)",
            len_hint=_length(source),
            limit=limit,
            repeatable=False,
        )
    # Not iter(source): a DataLoader starts its worker processes there.
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise DataError(
            f"calibration data cannot be read from a {type(source).__name__}; {ACCEPTED}."
        )
    loader = hasattr(source, "dataset") and hasattr(source, "batch_size")
    # A loader that shuffles would give other samples for the same numbers.
    repeatable = not hasattr(source, "__next__") and not (loader and _shuffles(source))
    if not loader and _length(source) == 0:
        raise EmptyDataError("the calibration data is empty; give at least one sample.")
    return Samples(
        lambda: _named(_items_of(source), specs, transform, loader=loader),
        specs,
        description=source.description
        if isinstance(source, Samples)
        else f"{type(source).__name__} of {'batches' if loader else 'samples'}",
        len_hint=source.len_hint if isinstance(source, Samples) else _length(source),
        limit=limit,
        repeatable=repeatable and getattr(source, "repeatable", True) is not False,
    )


def _open_files(source: Any, specs: tuple[InputSpec, ...], transform: Any) -> FileSamples | None:
    """Open a path, or a list of paths or of images; None: the source is something else."""
    if isinstance(source, str | os.PathLike):
        return open_path(Path(source), specs, transform)
    if not isinstance(source, list | tuple) or not source:
        return None
    if all(isinstance(one, str | os.PathLike) for one in source):
        files = [Path(one) for one in source]
        for file in files:
            if not file.is_file():
                raise DataError(f"there is no file {str(file)!r}; check the list of paths.")
        return open_paths(files, specs, transform, "list")
    if all(map(is_image, source)):
        count, produce, make = open_images(source, specs, transform)
        described = f"list of {counted(len(source), 'image')}"
        return FileSamples(produce, described, count, make)
    return None


def _items_of(source: Any) -> Iterable[Any]:
    """Return the items of a dataset that only has a length and numbers, or the source itself."""
    if hasattr(source, "__iter__") or _length(source) is None:
        items: Iterable[Any] = source
        return items
    return (source[number] for number in range(len(source)))


def _shuffles(loader: Any) -> bool:
    """Whether a loader shuffles its samples at each pass."""
    sampler = getattr(loader, "sampler", None)
    return sampler is not None and type(sampler).__name__ != "SequentialSampler"


def _is_single_array(value: Any) -> bool:
    """Whether the value is an array or a tensor, as opposed to a container of them."""
    return isinstance(value, np.ndarray) or callable(getattr(value, "detach", None))


def _open_stack(
    source: Any, specs: tuple[InputSpec, ...], limit: int | None, transform: Any
) -> Samples:
    if isinstance(transform, ImagePreprocess):
        raise DataError(
            f"image preprocessing was given, but the data is a {type(source).__name__} and not a "
            "folder of images; leave transform out, or give the folder."
        )
    if isinstance(source, Mapping):
        arrays = {}
        names = {spec.name for spec in specs}
        whole = names <= source.keys()  # then the rest is labels and the like
        for name, value in source.items():
            if whole and name not in names:
                continue
            try:
                arrays[name] = as_array(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise DataError(
                    f"the data for {name!r} cannot be read as an array ({error}); "
                    "give one numpy array that stacks the samples."
                ) from error
        description = "dict of arrays"
    else:
        whole_array = as_array(source)
        if len(specs) != 1:
            raise DataError(
                f"the data is one array, but the model has {len(specs)} inputs "
                f"({', '.join(spec.name for spec in specs)}); give a dict that names each."
            )
        arrays = {specs[0].name: whole_array}
        description = f"array of shape {list(arrays[specs[0].name].shape)}"
    count, _ = split_stack(arrays, specs, origin=f"the {description}", lone=True)
    if count == 0:
        raise EmptyDataError("the calibration data is empty; give at least one sample.")

    def produce() -> Iterator[tuple[Mapping[str, Any], None]]:
        samples = split_stack(arrays, specs, origin=f"the {description}", lone=True)[1]
        for index, sample in enumerate(samples):
            if callable(transform):
                item = sample if len(specs) > 1 else sample[specs[0].name]
                yield name_item(item, specs, index, transform=transform), None
            else:
                yield sample, None

    return Samples(produce, specs, description=description, len_hint=count, limit=limit)


def _drain_reader(reader: Any) -> Iterator[Any]:
    while True:
        try:
            item = reader.get_next()
        except StopIteration:
            # Readers written as `return next(self.samples)` end this way.
            return
        if item is None or (not hasattr(item, "shape") and not item):
            return
        yield item


def _named(
    items: Iterable[Any], specs: tuple[InputSpec, ...], transform: Any, *, loader: bool
) -> Iterator[tuple[Mapping[str, Any], None]]:
    for index, item in enumerate(items):
        yield name_item(item, specs, index, transform=transform, loader=loader), None


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError, AttributeError):
        # CalibrationDataReader and loaders over streams define __len__ only to refuse.
        return None


def cache_samples(samples: Samples, *, max_bytes: int | None = None) -> Samples:
    """Return the samples in a form that can be read again: themselves, or a copy in memory.

    A copy of more than `max_bytes`, where given, is refused.

    >>> import numpy as np
    >>> from bitwright.data import InputSpec, open_data
    >>> spec = InputSpec("x", np.dtype("float32"), (1, 2))
    >>> once = open_data(iter([{"x": np.zeros((1, 2), np.float32)}]), [spec])
    >>> cached = cache_samples(once, max_bytes=1000)
    >>> len(list(cached)), len(list(cached))
    (1, 1)
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
    """Return the same stream with the arrays for these inputs converted from NCHW to NHWC.

    >>> from bitwright.data import open_data
    >>> spec = InputSpec("image", np.dtype("float32"), (1, 3, 8, 9))
    >>> samples = open_data(np.zeros((2, 3, 8, 9), np.float32), [spec])
    >>> [sample["image"].shape for sample in to_channels_last(samples, {"image"})]
    [(1, 8, 9, 3), (1, 8, 9, 3)]
    """
    if not channels_last:
        return samples

    def produce() -> Iterator[tuple[Sample, None]]:
        for sample in samples:
            yield turned(sample), None

    def turned(sample: Sample) -> Sample:
        return {k: _to_last(v) if k in channels_last else v for k, v in sample.items()}

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


def _to_last(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def _permuted(spec: InputSpec, order: Sequence[int]) -> InputSpec:
    shape = spec.shape
    return spec if shape is None else replace(spec, shape=tuple(shape[axis] for axis in order))
