"""Calibration data from everything that the verbs accept, as a stream of samples: `open_data`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.files import open_path, open_paths
from bitwright.data.image_preprocess import ImagePreprocess, Transform, no_images
from bitwright.data.images import is_image, open_images
from bitwright.data.items import ACCEPTED, name_item, transformed
from bitwright.data.random import RandomData
from bitwright.data.samples import Samples
from bitwright.data.shapes import ShapedData, fix_shapes
from bitwright.data.specs import InputSpec, as_array, split_stack
from bitwright.data.texts import TextData
from bitwright.errors import DataError, EmptyDataError
from bitwright.support.arguments import check_arguments
from bitwright.support.wording import counted


@check_arguments
def open_data(
    source: Any,
    specs: Sequence[InputSpec],
    *,
    limit: int | None = None,
    transform: Transform = None,
) -> Samples:
    """Open calibration data for a model; each sample is checked just before it is given.

    `source` is one of

    * an iterable of dicts (input name to array), of tuples (one array for each input) or of
      single arrays (for a model with one input); what comes beside the inputs, such as a label,
      is left out;
    * an object with `get_next()`, such as ONNX Runtime's `CalibrationDataReader`;
    * a torch `DataLoader` or dataset, or a Hugging Face dataset;
    * one array, or one dict of arrays, that stacks many samples (`split_stack` has the rule);
    * a list of images of Pillow, or of paths;
    * the path of a `.npy`, `.npz` or `.csv` file, of an image, of a video, of a `.wav` file, or of
      a folder of these, or a pattern such as `images/*.png` (`open_path`);
    * `RandomData` or `TextData`, which make samples that fit the inputs.

    `transform` says how images become arrays, in words or as an `ImagePreprocess`; or it is a
    function that is given each item (an image as Pillow's) and returns what the model reads.

    >>> import numpy as np
    >>> spec = InputSpec("x", np.dtype("float32"), ("batch", 2))
    >>> pairs = [(np.ones(2, np.float32), "a label")] * 3
    >>> [sample["x"].shape for sample in open_data(pairs, [spec], transform=lambda pair: pair[0])]
    [(1, 2), (1, 2), (1, 2)]
    >>> open_data(RandomData(count=3), [spec]).len_hint
    3
    """
    if isinstance(source, ShapedData):
        specs, _ = fix_shapes(specs, source.shapes)
        transform = source.transform if transform is None else transform
        source = source.data
    if isinstance(source, RandomData | TextData) and transform is not None:
        kind = type(source).__name__
        raise DataError(f"a transform was given, and {kind} makes its own arrays; leave it out.")
    if isinstance(source, RandomData):
        return source.samples(specs).limited(limit)
    if isinstance(source, TextData):
        return source.samples(specs, limit=limit)
    if isinstance(transform, str):
        transform = ImagePreprocess.parse(transform)
    specs = tuple(specs)
    found = _open_files(source, specs, transform) or _open_object(source, specs, transform)
    return found.limited(limit)


def paths_of(source: Any) -> list[str | os.PathLike[str]]:
    """Return the paths that data is given by; none for arrays, readers and the like."""
    if isinstance(source, ShapedData):
        return paths_of(source.data)
    if isinstance(source, TextData):
        texts = [source.text] if isinstance(source.text, str | os.PathLike) else source.text
        given: Sequence[Any] = [*texts, source.tokenizer]
    else:
        given = source if isinstance(source, list | tuple) else [source]
    return [each for each in given if isinstance(each, str | os.PathLike)]


def _open_object(source: Any, specs: tuple[InputSpec, ...], transform: Any) -> Samples:
    """Open arrays, a reader, or whatever gives samples or batches one after the other."""
    if source is None:
        raise DataError(f"there is no calibration data; {ACCEPTED}.")
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
