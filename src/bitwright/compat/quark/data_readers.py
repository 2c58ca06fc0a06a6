"""Calibration data readers of Quark: samples kept in memory, random ones, and those of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import onnx

from bitwright.compat.onnxruntime.readers import CalibrationDataReader
from bitwright.compat.vai_q_onnx.values import random_shapes
from bitwright.data import RandomData, open_data, session_inputs
from bitwright.run import Session

ModelInput = str | Path | onnx.ModelProto


class _Samples(CalibrationDataReader):
    """Gives samples that can be given again from the start."""

    def __init__(self) -> None:
        self._next: Iterator[dict[str, Any]] | None = None

    def _samples(self) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def get_next(self) -> dict[str, Any] | None:
        """Return the inputs of the next sample, or None at the end."""
        if self._next is None:
            self._next = self._samples()
        return next(self._next, None)

    def reset_iter(self) -> None:
        """Begin again."""
        self._next = None

    rewind = reset_iter


class CachedDataReader(_Samples):
    """The samples of another reader, at most `data_size`, kept in memory.

    >>> import numpy as np
    >>> reader = CachedDataReader(iter([{"x": np.zeros(2)}, {"x": np.ones(2)}]), data_size=1)
    >>> len(list(reader)), reader.get_next()
    (1, None)
    """

    def __init__(self, dr: Any, data_size: int | None = None) -> None:
        super().__init__()
        self.data_size = data_size
        given = iter(dr.get_next, None) if hasattr(dr, "get_next") else iter(dr)
        self._cache: list[dict[str, Any]] = list(islice(given, data_size))

    def __len__(self) -> int:
        return len(self._cache)

    def _samples(self) -> Iterator[dict[str, Any]]:
        return iter(self._cache)


class RandomDataReader(_Samples):
    """One random sample: for trying out that a model can be quantized.

    `input_shape` is one shape, one for each input, or a dict by name.

    >>> import bitwright
    >>> reader = RandomDataReader(bitwright.load_demo().model_path)
    >>> [sample["image"].shape for sample in reader]
    [(1, 1, 8, 8)]
    """

    def __init__(
        self,
        model_input: ModelInput,
        input_shape: Mapping[str, Sequence[int]] | Sequence[Any] = (),
        input_data_range: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        self._model_input = model_input
        ranges = {name: (span[0], span[1]) for name, span in (input_data_range or {}).items()}
        self._random = RandomData(count=1, shapes=random_shapes(input_shape), ranges=ranges or None)

    def _samples(self) -> Iterator[dict[str, Any]]:
        return iter(self._random.samples(session_inputs(Session(self._model_input).runtime)))


class PathDataReader(_Samples):
    """The samples of a folder of `.npy` files, or of any other path that Bitwright reads."""

    def __init__(self, model_input: ModelInput, data_path: str | Path) -> None:
        super().__init__()
        self._model_input, self._data_path = model_input, Path(data_path)

    def _samples(self) -> Iterator[dict[str, Any]]:
        return iter(open_data(self._data_path, session_inputs(Session(self._model_input).runtime)))
