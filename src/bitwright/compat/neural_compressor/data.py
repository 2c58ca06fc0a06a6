"""`neural_compressor.data`: a loader that puts the samples of a dataset into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bitwright.errors import DataError
from bitwright.support.wording import warn_user

_LAST = ("rollover", "discard")


class DataLoader:
    """Batches of a dataset that can be iterated over, or gives its samples by number.

    >>> loader = DataLoader("onnxruntime", [(np.zeros(3), 0), (np.ones(3), 1)], batch_size=2)
    >>> [(inputs.shape, labels) for inputs, labels in loader]
    [((2, 3), [0, 1])]
    """

    def __init__(
        self,
        framework: str,
        dataset: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        last_batch: str = "rollover",
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        shuffle: bool = False,
        distributed: bool = False,
    ) -> None:
        _check_framework(framework)
        if last_batch not in _LAST:
            raise DataError(f"last_batch is one of {', '.join(_LAST)}, not {last_batch!r}.")
        if batch_size < 1:
            raise DataError(f"batch_size is at least 1, not {batch_size}.")
        others = {"num_workers": num_workers, "pin_memory": pin_memory, "shuffle": shuffle}
        for name, given in {**others, "distributed": distributed}.items():
            if given:
                warn_user(
                    f"{name} of DataLoader is ignored: samples are read in order, in this process."
                )
        self.dataset = dataset
        self.batch_size = batch_size
        self.last_batch = last_batch
        self._collate = collate_fn or _collated
        self._sampler, self._batch_sampler = sampler, batch_sampler

    def batch(self, batch_size: int, last_batch: str | None = None) -> None:
        """Set the size of the batches."""
        self.batch_size = batch_size
        self.last_batch = last_batch or self.last_batch

    def __iter__(self) -> Iterator[Any]:
        if self._batch_sampler is not None:
            for indices in self._batch_sampler:
                yield self._collate([self.dataset[index] for index in indices])
            return
        samples = self._samples()
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or self.last_batch == "rollover":
                yield self._collate(batch)

    def _samples(self) -> Iterator[Any]:
        if self._sampler is not None:
            return (self.dataset[index] for index in self._sampler)
        if hasattr(self.dataset, "__getitem__") and hasattr(self.dataset, "__len__"):
            return (self.dataset[index] for index in range(len(self.dataset)))
        return iter(self.dataset)


def _collated(samples: list[Any]) -> Any:
    """Return samples as one: dicts and tuples part by part, arrays as one with an axis more."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: _collated([sample[key] for sample in samples]) for key in first}
    if isinstance(first, Sequence) and not isinstance(first, str | bytes):
        return [_collated(list(parts)) for parts in zip(*samples, strict=True)]
    alike = isinstance(first, np.ndarray) and len({np.shape(sample) for sample in samples}) == 1
    return np.stack(samples) if alike else samples


def make_dummy(
    shape: tuple[int, ...] | list[tuple[int, ...]],
    low: Any = -128.0,
    high: Any = 127.0,
    dtype: Any = "float32",
    label: bool = True,
) -> list[Any]:
    """Return random samples of these shapes, whose first axis counts them; the values are theirs.

    Limits and types are one for all inputs, or one for each.
    """
    shapes = shape if isinstance(shape, list) else [shape]
    lows, highs, kinds = ([v] * len(shapes) if np.isscalar(v) else v for v in (low, high, dtype))
    random = np.random.RandomState(9527)
    made = [
        random.uniform(least, most, size=size).astype(kind)
        for size, least, most, kind in zip(shapes, lows, highs, kinds, strict=True)
    ]
    samples = list(made[0]) if len(made) == 1 else list(zip(*made, strict=True))
    return [(sample, 0) for sample in samples] if label else samples


class Datasets:
    """The datasets of a framework, by name.

    >>> len(Datasets("onnxrt_qdq")["dummy"](shape=(4, 3)))
    4
    """

    def __init__(self, framework: str) -> None:
        _check_framework(framework)

    def __getitem__(self, name: str) -> Callable[..., list[Any]]:
        if name != "dummy":
            raise DataError(f"there is no dataset {name!r}; read the files by bitwright.open_data.")
        return make_dummy


def _check_framework(framework: str) -> None:
    if not framework.startswith(("onnxrt", "onnxruntime")):
        raise DataError(f"a loader is for the framework onnxruntime, not {framework!r}.")
