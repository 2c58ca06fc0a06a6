"""Where calibration data comes from, by ONNX Runtime's names."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

__all__ = ["CalibrationDataReader"]


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives one dict of inputs after another, then None.

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
