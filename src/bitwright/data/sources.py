"""Open calibration data that is there, in files or in memory, as a stream of samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.files import open_path, open_paths
from bitwright.data.image_preprocess import ImagePreprocess, no_images
from bitwright.data.images import is_image, open_images
from bitwright.data.items import ACCEPTED, name_item, transformed
from bitwright.data.samples import Samples
from bitwright.data.specs import InputSpec, as_array, split_stack
from bitwright.errors import DataError, EmptyDataError
from bitwright.support.wording import counted


def open_source(source: Any, specs: Sequence[InputSpec], *, transform: Any = None) -> Samples:
    """Open data that is there, in files or in memory, for a model.

    `transform` is an `ImagePreprocess`, a function, or None.
    """
    specs = tuple(specs)
    found = _open_files(source, specs, transform)
    if found is not None:
        return found
    if source is None:
        raise DataError(f"there is no calibration data; {ACCEPTED}.")
    return _open_object(source, specs, transform)


def _open_object(source: Any, specs: tuple[InputSpec, ...], transform: Any) -> Samples:
    """Open arrays, a reader, or whatever gives samples or batches one after the other."""
    if isinstance(source, Mapping) and all(hasattr(part, "features") for part in source.values()):
        parts = ", ".join(map(str, source))
        first = next(iter(source), "train")
        raise DataError(
            f"the dataset has parts ({parts}); give one of them, such as dataset[{first!r}]."
        )
    is_tensor = callable(getattr(source, "detach", None))
    if isinstance(source, Mapping | np.ndarray) or is_tensor:
        return _open_stack(source, specs, transform)
    if callable(getattr(source, "get_next", None)):
        return Samples(
            lambda: _named(_drain_reader(source), specs, transform, loader=False),
            specs,
            description=f"{type(source).__name__} (get_next)",
            len_hint=_length(source),
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
        repeatable=repeatable and getattr(source, "repeatable", True) is not False,
    )


def _open_files(source: Any, specs: tuple[InputSpec, ...], transform: Any) -> Samples | None:
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
        described = f"list of {counted(len(source), 'image')}"
        return open_images(source, specs, transform, described)
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


def _open_stack(source: Any, specs: tuple[InputSpec, ...], transform: Any) -> Samples:
    if isinstance(transform, ImagePreprocess):
        raise no_images(f"the data is a {type(source).__name__} and not a folder of images")
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
            yield transformed(sample, specs, index, transform), None

    return Samples(produce, specs, description=description, len_hint=count)


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
