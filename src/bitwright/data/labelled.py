"""Evaluation samples: model inputs, plus labels for the metric."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from bitwright.data.array_files import load_arrays
from bitwright.data.files import class_of_images, is_array_file, list_files
from bitwright.data.image_preprocess import ImagePreprocess, Transform
from bitwright.data.images import is_image
from bitwright.data.items import name_item
from bitwright.data.shapes import ShapedData
from bitwright.data.sources import open_data, paths_of
from bitwright.data.specs import Array, InputSpec, Sample, as_array, check_sample, split_stack
from bitwright.errors import DataError
from bitwright.support import ScratchFolder, check_regular_file

LABEL = "label"
"""The name of what is given beside the data: a list of labels, or the classes of folders."""
_LABEL_LINES = (".txt", ".csv")


class ArrayStore:
    """Random-access store of named arrays, in memory up to a limit and on disk beyond it."""

    def __init__(self, *, memory_budget: int) -> None:
        self._kept: list[Mapping[str, Array] | Path] = []
        self._left = memory_budget
        self._scratch: ScratchFolder | None = None

    def append(self, arrays: Mapping[str, Array]) -> None:
        """Keep one more set."""
        self._left -= sum(array.nbytes for array in arrays.values())
        self._kept.append(arrays if self._left >= 0 else self._spill(arrays))

    def _spill(self, arrays: Mapping[str, Array]) -> Path:
        if self._scratch is None:
            self._scratch = ScratchFolder("samples")
        path = self._scratch.path / f"{len(self._kept)}.npz"
        numbered = {f"{number}": array for number, array in enumerate(arrays.values())}
        with self._scratch.writing(), path.open("wb") as file:
            np.savez(file, names=np.array(list(arrays)), **numbered)  # type: ignore[arg-type]
        return path

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Sample:
        found = self._kept[index]
        if not isinstance(found, Path):
            return dict(found)
        with np.load(found, allow_pickle=False) as arrays:
            names = [str(name) for name in arrays["names"]]
            return {name: arrays[f"{number}"] for number, name in enumerate(names)}


class LabelledSamples(Sequence[dict[str, Any]]):
    """Random access to samples and their labels."""

    def __init__(
        self, items: Iterable[tuple[Sample, Mapping[str, Any]]], *, memory_budget: int
    ) -> None:
        self._feeds = ArrayStore(memory_budget=memory_budget)
        self._extras: list[Mapping[str, Any]] = []
        for feeds, extra in items:
            self._feeds.append(feeds)
            self._extras.append(extra)

    def __len__(self) -> int:
        return len(self._extras)

    @property
    def extra(self) -> tuple[str, ...]:
        """The names of what comes with the first sample and is no input of the model."""
        return tuple(self._extras[0]) if self._extras else ()

    def feeds(self, index: int) -> Sample:
        """Return what the model reads of a sample."""
        return self._feeds[index]

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return {**self._extras[index], **self._feeds[index]}


def open_labelled(
    source: Any,
    specs: Sequence[InputSpec],
    *,
    labels: Any = None,
    limit: int | None = None,
    transform: Transform = None,
    memory_budget: int = 512 << 20,
) -> LabelledSamples:
    """Read samples and the arrays beside their inputs; `labels` has one label per sample, in order.

    Whatever a sample has beside the model's inputs is handed to the metric under its name: more
    keys of a dict, more arrays of a `.npz` file, and of a DataLoader's tuple the element behind the
    inputs, as "label". Images in one folder for each class have the number of their class, in the
    order of the folders' names. `labels` is a list, an array, or a `.npy`, `.json`, `.txt` or
    `.csv` file.
    """
    given = None if labels is None else read_labels(labels)
    if isinstance(source, ShapedData) and source.shapes is None:
        transform = source.transform if transform is None else transform
        source = source.data
    if isinstance(transform, str):
        transform = ImagePreprocess.parse(transform)
    items = _items(source, tuple(specs), transform)
    found = LabelledSamples(
        _numbered(items, tuple(specs), given, limit), memory_budget=memory_budget
    )
    if not found:
        raise DataError("there are no samples to evaluate with; give at least one.")
    if given is not None and limit is None and len(given) != len(found):
        raise DataError(
            f"there are {len(given)} labels for {len(found)} samples; give one for each."
        )
    return found


def _numbered(
    items: Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]],
    specs: Sequence[InputSpec],
    labels: Sequence[Any] | None,
    limit: int | None,
) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
    for index, (feeds, extra) in enumerate(items):
        if limit is not None and index >= limit:
            return
        checked = check_sample(feeds, specs, index)
        if labels is not None:
            if index >= len(labels):
                raise DataError(f"there are {len(labels)} labels, and more samples than that.")
            extra = {**extra, LABEL: labels[index]}
        yield checked, extra


def _items(
    source: Any, specs: tuple[InputSpec, ...], transform: Transform
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (inputs of the model, everything else) of each sample."""
    names = [spec.name for spec in specs]
    if isinstance(source, Mapping):
        arrays = {str(name): as_array(value) for name, value in source.items()}
        yield from _cut(arrays, specs, "the dict of arrays", lone=True)
        return
    if isinstance(source, str | os.PathLike) and Path(source).exists():
        files = list_files(Path(source))
        if files and all(map(is_array_file, files)) and transform is None:
            for file in files:
                arrays = load_arrays(file)
                if len(arrays) == 1 and len(names) == 1:
                    arrays = {names[0]: next(iter(arrays.values()))}
                yield from _cut(arrays, specs, str(file), lone=len(files) == 1)
            return
        classes = class_of_images(Path(source))
        samples = open_data(source, specs, transform=transform)
        for index, sample in enumerate(samples):
            yield sample, {} if classes is None else {LABEL: _of_batch(classes, index, sample)}
        return
    loader = hasattr(source, "dataset") and hasattr(source, "batch_size")
    plain = not isinstance(source, ShapedData) and hasattr(source, "__iter__")
    if not plain or callable(getattr(source, "get_next", None)) or hasattr(source, "dtype"):
        for sample in open_data(source, specs, transform=transform):
            yield sample, {}
        return
    for index, item in enumerate(source):
        given = transform(item) if callable(transform) else item
        images = transform if isinstance(transform, ImagePreprocess) else None
        feeds = name_item(given, specs, index, transform=images, loader=loader)
        yield feeds, _beside_inputs(given, names)


def _beside_inputs(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what an item holds beside the model's inputs, by name."""
    if isinstance(item, Mapping):
        return {k: v for k, v in item.items() if k not in names and not is_image(v)}
    if isinstance(item, tuple | list) and item and isinstance(item[0], Mapping):
        rest = item[1:]
        extra = _beside_inputs(item[0], names)
    elif isinstance(item, tuple | list):
        rest, extra = item[len(names) :], {}
    else:
        return {}
    return extra | ({LABEL: rest[0] if len(rest) == 1 else rest} if rest else {})


def _of_batch(classes: Sequence[int], index: int, sample: Sample) -> Any:
    """Return the class of an image, or those of the images in a batch."""
    [array] = sample.values()
    rows = len(array) if array.ndim > 3 else 1
    found = classes[index * rows : (index + 1) * rows]
    return found[0] if rows == 1 else np.array(found)


def _cut(
    arrays: Mapping[str, Array], specs: tuple[InputSpec, ...], origin: str, *, lone: bool
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    names = {spec.name for spec in specs}
    inputs = {name: array for name, array in arrays.items() if name in names}
    extras = {name: array for name, array in arrays.items() if name not in names}
    count, samples = split_stack(inputs, specs, origin=origin, lone=lone)
    for name, array in extras.items():
        if count > 1 and (array.ndim == 0 or len(array) != count):
            raise DataError(
                f"{name!r} in {origin} is no input of the model and has not one row for each of "
                f"the {count} samples; give it one, or leave it out."
            )
    for index, sample in enumerate(samples):
        yield sample, {n: array[index] if count > 1 else array for n, array in extras.items()}


def read_labels(labels: Any) -> Sequence[Any]:
    """Return one label for each sample: from a list, an array or a file.

    Lines of a text that are whole numbers become numbers.
    """
    if not isinstance(labels, str | os.PathLike):
        try:
            return list(labels)
        except TypeError:
            raise DataError(
                f"labels are a list, an array or a file, not a {type(labels).__name__}."
            ) from None
    path = Path(labels)
    check_regular_file(path, DataError)
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return list(load_arrays(path)[""])
        text = path.read_text(encoding="utf-8")
        if suffix == ".json":
            found = json.loads(text)
            if not isinstance(found, list):
                raise DataError(f"{str(path)!r} holds no list of labels; give one for each sample.")
            return found
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"cannot read the labels {str(path)!r}: {error}.") from error
    if suffix not in _LABEL_LINES:
        raise DataError(
            f"labels are read from .npy, .json, .txt and .csv files, and {str(path)!r} is none; "
            "save them as one of these."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if all(line.lstrip("-").isdigit() for line in lines):
        return [int(line) for line in lines]
    return lines


def fingerprint_data(source: Any) -> str | None:
    """Return a hash that identifies data without reading all of it; None where that is impossible.

    Files are known by their names, sizes and times, arrays by their bytes.
    """
    digest = hashlib.sha256()
    if source is None:
        return ""
    paths = [Path(path) for path in paths_of(source)]
    if paths:
        for path in paths:
            for file in [path] if path.is_file() else sorted(path.rglob("*")):
                if file.is_file():
                    facts = file.stat()
                    name = file.relative_to(path) if file != path else path.name
                    digest.update(f"{name}:{facts.st_size}:{facts.st_mtime_ns}\n".encode())
        digest.update(repr(source if not isinstance(source, str | os.PathLike) else "").encode())
        return digest.hexdigest()
    if _feed_digest(digest, source):
        return digest.hexdigest()
    return None


def _feed_digest(digest: Any, value: Any) -> bool:
    """Add a value that can be read again to a hash; False: it cannot."""
    if isinstance(value, Mapping):
        return all(
            _feed_digest(digest, str(name)) and _feed_digest(digest, item)
            for name, item in value.items()
        )
    if isinstance(value, list | tuple | LabelledSamples):
        digest.update(f"[{len(value)}".encode())
        return all(_feed_digest(digest, item) for item in value)
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        # A checksum of the bytes tells data apart, and takes an eighth of the time of a hash.
        content = np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
        digest.update(f"{value.dtype}{value.shape}{zlib.crc32(content)}".encode())
        return True
    if isinstance(value, str | int | float | bool | np.generic | None):
        digest.update(repr(value).encode())
        return True
    return False
