"""`open_data`: calibration data from everything that the verbs accept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bitwright.data.image_preprocess import ImagePreprocess, Transform
from bitwright.data.random import RandomData
from bitwright.data.samples import Samples
from bitwright.data.shapes import ShapedData, fix_shapes
from bitwright.data.sources import open_source
from bitwright.data.specs import InputSpec
from bitwright.data.texts import TextData
from bitwright.errors import DataError
from bitwright.support.arguments import check_arguments


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
    * the path of a `.npy`, `.npz` or `.csv` file, of an image, of a video, or of a folder of
      these, or a pattern such as `images/*.png` (`open_path`);
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
        raise DataError(
            f"a transform was given, and {type(source).__name__} makes its own arrays; leave it "
            "out."
        )
    if isinstance(source, RandomData):
        return source.samples(specs).limited(limit)
    if isinstance(source, TextData):
        return source.samples(specs, limit=limit)
    if isinstance(transform, str):
        transform = ImagePreprocess.parse(transform)
    return open_source(source, specs, transform=transform).limited(limit)


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
