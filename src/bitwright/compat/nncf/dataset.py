"""`nncf.dataset`: items of the user's, and the function that makes a model's inputs of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any


class Dataset:
    """Items to calibrate or validate with; `transform_func` makes a model's inputs of an item.

    >>> dataset = Dataset([(1.0, "a"), (2.0, "b"), (3.0, "c")], lambda item: {"x": item[0]})
    >>> list(dataset.get_data([0, 2])), list(dataset.get_inference_data([1]))
    ([(1.0, 'a'), (3.0, 'c')], [{'x': 2.0}])
    """

    def __init__(
        self, data_source: Iterable[Any], transform_func: Callable[..., Any] | None = None
    ) -> None:
        self._source = data_source
        self._transform = transform_func

    def get_data(self, indices: Sequence[int] | None = None) -> Iterable[Any]:
        """Return items as they are, all or those of these numbers, to be read again and again."""
        return _Items(self._source, None, indices)

    def get_inference_data(self, indices: Sequence[int] | None = None) -> Iterable[Any]:
        """Return the model inputs of all items, or of those with these numbers."""
        return _Items(self._source, self._transform, indices)

    def get_length(self) -> int | None:
        """Return how many items there are; None where that is not known."""
        return len(self._source) if isinstance(self._source, Sized) else None

    def get_batch_size(self) -> int | None:
        """Return the size of batches, where the source knows it."""
        size: int | None = getattr(self._source, "batch_size", None)
        return size


@dataclass(frozen=True, slots=True)
class _Items:
    _source: Iterable[Any]
    _transform: Callable[..., Any] | None
    _indices: Sequence[int] | None

    def __iter__(self) -> Iterator[Any]:
        items = self._chosen()
        return items if self._transform is None else map(self._transform, items)

    def _chosen(self) -> Iterator[Any]:
        if self._indices is None:
            return iter(self._source)
        if hasattr(self._source, "__getitem__"):
            return (self._source[index] for index in self._indices)
        wanted = frozenset(self._indices)
        read = islice(self._source, max(wanted, default=-1) + 1)
        return (item for index, item in enumerate(read) if index in wanted)


def first_inputs(dataset: Dataset, count: int) -> Iterable[Any]:
    """Return the model inputs of the first `count` items, or of all if there are fewer."""
    length = dataset.get_length()
    few = length is None or length > count
    return dataset.get_inference_data(range(count) if few else None)
