"""`CalibrationDataReader`, and reading one in strides."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives one dict of inputs after another, then None.

    The peer's has a length that raises, so that `list(reader)` fails.

    >>> import numpy as np
    >>> class Reader(CalibrationDataReader):
    ...     def __init__(self): self.left = 2
    ...     def get_next(self):
    ...         self.left -= 1
    ...         return {"x": np.zeros(1)} if self.left >= 0 else None
    >>> len(list(Reader()))
    2
    """

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next sample, or None at the end."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        result = self.get_next()
        if result is None:
            raise StopIteration
        return result

    def set_range(self, start_index: int, end_index: int) -> None:
        """Restrict the reader to a part of the data."""
        raise NotImplementedError


def read_in_strides(reader: Any, stride: int | None) -> Any:
    """Return data that sets a reader to one part of `stride` samples after another.

    A reader may give nothing before its range is set. What has no ranges is returned as it is:
    one streaming pass keeps no more in memory than a part would.
    """
    if stride is None or not callable(getattr(reader, "set_range", None)):
        return reader
    try:
        total = len(reader)
    except (TypeError, NotImplementedError):
        return reader
    return _Strides(reader, stride, total)


class _Strides:
    """Samples of a reader, part by part; the ranges let it be read again."""

    def __init__(self, reader: Any, stride: int, total: int) -> None:
        self._reader = reader
        self._stride = stride
        self._total = total

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, self._total, self._stride):
            self._reader.set_range(
                start_index=start, end_index=min(start + self._stride, self._total)
            )
            while sample := self._reader.get_next():
                yield sample
