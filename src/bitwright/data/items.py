"""Items of any data source as samples: matched with the model's inputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bitwright.data.image_preprocess import ImagePreprocess, no_images
from bitwright.data.images import image_to_array, is_image
from bitwright.data.specs import InputSpec, as_array
from bitwright.errors import DataError

ACCEPTED = (
    "give a list or generator of dicts (input name to array), an ONNX Runtime "
    "CalibrationDataReader, a torch DataLoader or dataset, a Hugging Face dataset, images, or the "
    "path of .npy, .npz or .csv files, images or videos"
)


def name_item(
    item: Any,
    specs: Sequence[InputSpec],
    index: int,
    *,
    transform: Any = None,
    loader: bool = False,
) -> Mapping[str, Any]:
    """Match one item of a source with the model's inputs; labels are left out.

    A function `transform` is given the item first. Images become arrays, and what has all but the
    batch dimension gets it, where the model takes one sample at a time.
    """
    if callable(transform):
        item = transform(item)
    named = _pair(item, specs, index, loader)
    by_name = {spec.name: spec for spec in specs}
    if isinstance(transform, ImagePreprocess) and not any(map(is_image, named.values())):
        raise no_images(f"sample {index} is no image")
    return {
        name: _fit(value, by_name[name], transform, index) if name in by_name else value
        for name, value in named.items()
    }


def transformed(
    sample: Mapping[str, Any], specs: Sequence[InputSpec], index: int, transform: Any
) -> Mapping[str, Any]:
    """Return a sample of arrays as a function makes it; as it is without one."""
    if not callable(transform):
        return sample
    item = sample if len(specs) > 1 else next(iter(sample.values()))
    return name_item(item, specs, index, transform=transform)


def _pair(item: Any, specs: Sequence[InputSpec], index: int, loader: bool) -> Mapping[str, Any]:
    names = [spec.name for spec in specs]
    if isinstance(item, Mapping):
        if all(name in item for name in names):
            return {name: item[name] for name in names}
        images = [value for value in item.values() if is_image(value)]
        if len(names) == len(images) == 1:  # as datasets of images have them, under any name
            return {names[0]: images[0]}
        return item
    if isinstance(item, tuple | list):
        if item and isinstance(item[0], Mapping):
            return _pair(item[0], specs, index, loader)
        if len(item) > len(names) and (loader or all(map(_is_array, item[: len(names)]))):
            item = item[: len(names)]
        if len(item) == len(names):
            return dict(zip(names, item, strict=True))
        raise DataError(
            f"sample {index} is a {type(item).__name__} of {len(item)} values, but the model takes "
            f"{len(names)} ({', '.join(names)}); give one array for each input, or a dict."
        )
    if _is_array(item):
        if len(names) == 1:
            return {names[0]: item}
        raise DataError(
            f"sample {index} is one array, but the model has {len(names)} inputs "
            f"({', '.join(names)}); give a dict that names each."
        )
    raise DataError(f"sample {index} is a {type(item).__name__}; {ACCEPTED}.")


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") or callable(getattr(value, "numpy", None)) or is_image(value)


def _fit(value: Any, spec: InputSpec, transform: Any, index: int) -> Any:
    if is_image(value):
        given = transform if isinstance(transform, ImagePreprocess) else None
        value = image_to_array(value, spec, given, f"image {index}")
    if not spec.shape or (isinstance(spec.shape[0], int) and spec.shape[0] != 1):
        return value
    try:
        array = as_array(value)
    except (ValueError, TypeError, OverflowError):
        return value  # whoever checks the sample says what is wrong with it
    return array[np.newaxis] if array.ndim == len(spec.shape) - 1 else array
