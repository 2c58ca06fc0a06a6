"""Samples for a model from any kind of data: a request for random numbers or text, or the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bitwright.data.images import ImagePreprocess
from bitwright.data.random import RandomData
from bitwright.data.shapes import ShapedData, fix_shapes
from bitwright.data.sources import Samples, open_data
from bitwright.data.specs import InputSpec
from bitwright.data.texts import TextData

__all__ = ["paths_of", "read_data"]


def read_data(
    data: Any,
    specs: Sequence[InputSpec],
    *,
    limit: int | None = None,
    preprocess: ImagePreprocess | str | None = None,
) -> Samples:
    """Return the samples for a model with these inputs; `open_data` says what else data can be.

    >>> import numpy as np
    >>> spec = InputSpec("x", np.dtype("float32"), (1, 2))
    >>> read_data(RandomData(count=3), [spec]).len_hint
    3
    """
    if isinstance(data, ShapedData):
        specs, _ = fix_shapes(specs, data.shapes)
        data = data.data
    if isinstance(data, RandomData):
        return data.samples(specs)
    if isinstance(data, TextData):
        return data.samples(specs, limit=limit)
    return open_data(data, specs, limit=limit, preprocess=preprocess)


def paths_of(source: Any) -> list[str | os.PathLike[str]]:
    """Return the paths that data is given by; none for arrays, readers and the like.

    >>> paths_of(TextData(text="calibration.txt", tokenizer="tokenizer.json"))
    ['calibration.txt', 'tokenizer.json']
    """
    if isinstance(source, ShapedData):
        return paths_of(source.data)
    given = [source.text, source.tokenizer] if isinstance(source, TextData) else [source]
    return [each for each in given if isinstance(each, str | os.PathLike)]
