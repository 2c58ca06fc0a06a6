"""Images as calibration data: read from files or from memory, one by one or in batches."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bitwright.data.image_preprocess import (
    PREPROCESS_PRESETS,
    ImagePreprocess,
    ask_for,
    load_pillow,
)
from bitwright.data.samples import NamedSample, Samples
from bitwright.data.specs import Array, InputSpec, as_array
from bitwright.errors import DataError, MissingPackageError

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

# Of the formats that Pillow reads, only those of the suffixes: it tells formats apart by content,
# and hands PostScript, which is a program, to Ghostscript, whatever the file is named.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

Picture: TypeAlias = Any
"""The path of an image, or one of Pillow's."""


def is_image(value: Any) -> bool:
    """Return whether a value is an image of Pillow, which is not imported for this."""
    return type(value).__module__.startswith("PIL.") and callable(getattr(value, "convert", None))


def holds_files(source: Any, suffixes: Collection[str]) -> bool:
    """Return whether a path is a file of these kinds, a pattern of some, or a folder with some."""
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    files = path.rglob("*") if path.is_dir() else [path]
    return any(file.suffix.lower() in suffixes for file in files)


def image_to_array(image: Any, spec: InputSpec, transform: Any, name: str) -> Array:
    """Return an image as the array of one sample, without the batch dimension.

    `transform` is an `ImagePreprocess`, None for the usual one of the input, or a function.
    """
    if callable(transform):
        array = as_array(transform(image))
        has_batch = spec.shape is not None and array.ndim == len(spec.shape) == 4
        return array[0] if has_batch and len(array) == 1 else array
    chosen: ImagePreprocess = transform or usual_preprocess(spec)
    return chosen.apply(image, spec, name=name)


def usual_preprocess(spec: InputSpec) -> ImagePreprocess:
    """Return how pixels become numbers where nobody says it: 0..1, or as they are for integers."""
    return PREPROCESS_PRESETS["raw" if spec.dtype.kind in "iu" else "unit"]


def open_images(
    images: Sequence[Picture], specs: Sequence[InputSpec], transform: Any, description: str
) -> Samples:
    """Open images as samples.

    Without a transform, pixels become 0..1 for a float input and stay 0..255 for an integer
    one. A model with a fixed batch size gets that many images in each sample.
    """
    load_pillow()
    spec = one_image_input(specs)
    if transform is None or isinstance(transform, ImagePreprocess):
        transform, description = _at_own_size(images, spec, transform, description)
    unbatched = spec.shape is not None and len(spec.shape) == 3
    batch = spec.shape[0] if spec.shape and not unbatched else 1
    per_sample = batch if isinstance(batch, int) else 1
    count, left_over = divmod(len(images), per_sample)
    if count == 0:
        raise DataError(
            f"the model takes {per_sample} images at a time and there are only {len(images)}; "
            "give more images."
        )

    def produce() -> Iterator[NamedSample]:
        if left_over:
            warnings.warn(
                f"the last {left_over} of {len(images)} images are left out, because the model "
                f"takes {per_sample} at a time.",
                stacklevel=2,
            )
        yield from map(make, range(count))

    def make(number: int) -> NamedSample:
        first = number * per_sample
        group = images[first : first + per_sample]
        arrays = _read_batch(group, first, spec, transform)
        sample = arrays[0] if unbatched else np.stack(arrays)
        return {spec.name: sample}, None if is_image(group[0]) else Path(group[0]).name

    return Samples(produce, specs, description=description, len_hint=count, at=make)


def _at_own_size(
    images: Sequence[Picture], spec: InputSpec, transform: ImagePreprocess | None, description: str
) -> tuple[ImagePreprocess | None, str]:
    """Let images that are all of one size keep it, where neither model nor transform has one."""
    chosen = transform or usual_preprocess(spec)
    if chosen.letterbox or not chosen.lacks_size(spec):
        return transform, description
    read = ((image if is_image(image) else _upright(Path(image))).size for image in images)
    width, height = next(read)
    if any(size != (width, height) for size in read):
        return transform, description
    described = f"{description}, at their own size {height}x{width}"
    return chosen.replace(resize=(height, width)), described


def _read_batch(
    images: Sequence[Picture], first: int, spec: InputSpec, transform: Any
) -> list[Array]:
    """Return images of one size, the first of them of this number."""
    names = [_name_of(image, first + place) for place, image in enumerate(images)]
    arrays = [
        image_to_array(image if is_image(image) else _upright(Path(image)), spec, transform, name)
        for image, name in zip(images, names, strict=True)
    ]
    if len({array.shape for array in arrays}) > 1:
        raise ask_for(
            f"{names[0]} and {names[-1]} have different sizes and go into one batch",
            "resize=224x224",
        )
    return arrays


def _name_of(image: Picture, number: int) -> str:
    return f"image {number}" if is_image(image) else repr(str(image))


def one_image_input(specs: Sequence[InputSpec]) -> InputSpec:
    """Return the only input of a model, which images can feed."""
    if len(specs) != 1:
        raise DataError(
            f"images can feed a model with one input only, and this one has {len(specs)} "
            f"({', '.join(spec.name for spec in specs)}); give .npz files with one array for each."
        )
    return specs[0]


def _upright(file: Path) -> Any:
    """Return an image of Pillow; what that says against a file becomes one sentence."""
    pillow = load_pillow()
    from PIL.ImageOps import exif_transpose

    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            # Up to twice its limit Pillow only warns, and then unpacks the image.
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(file, formats=_FORMATS) as image:
                image.load()
                # Cameras store a photo as the sensor lay, and how to rotate it.
                return exif_transpose(image)
    except bombs as error:
        raise DataError(
            f"the image {str(file)!r} has more than {pillow.MAX_IMAGE_PIXELS} pixels, Pillow's "
            "limit; make it smaller or leave it out."
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        # SyntaxError is Pillow's word for a damaged PNG or TIFF; the rest are cut-off files.
        raise DataError(
            f"the image {str(file)!r} cannot be read ({error}); replace it or leave it out."
        ) from error


# Videos: one frame of each second, by PyAV -----------------------------------------------------

VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpg", ".webm")

_SECONDS = 1.0
"""Between two frames that are taken: neighbours show nearly the same."""


def video_samples(
    files: Sequence[Path], specs: Sequence[InputSpec], transform: Any
) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Give one sample for each second of the videos, one video after the other."""
    spec = one_image_input(specs)
    batch = spec.shape[0] if spec.shape and len(spec.shape) == 4 else 1
    if isinstance(batch, int) and batch != 1:
        raise DataError(
            f"input {spec.name!r} takes {batch} images at a time, and a video gives one frame "
            "after the other; save frames as images, or export the model with an open batch size."
        )
    unbatched = spec.shape is not None and len(spec.shape) == 3
    for file in files:
        for image in _frames(file):
            array = image_to_array(image, spec, transform, repr(str(file)))
            yield {spec.name: array if unbatched else np.stack([array])}, file.name


def _frames(file: Path) -> Iterator[Any]:
    """Give the first frame of a video and then one for each second, as images of Pillow."""
    try:
        import av
    except ImportError as error:
        raise MissingPackageError(
            f"reading the video {str(file)!r} needs PyAV; run: pip install 'bitwright[video]'"
        ) from error
    try:
        with av.open(str(file)) as container:
            if not container.streams.video:
                raise DataError(f"{str(file)!r} has no pictures; leave it out.")
            following = -np.inf
            for frame in container.decode(container.streams.video[0]):
                seconds = frame.time or 0.0
                if seconds >= following:
                    following = seconds + _SECONDS
                    yield frame.to_image()
    except (av.FFmpegError, ValueError) as error:
        raise DataError(
            f"the video {str(file)!r} cannot be read ({error}); replace it or leave it out."
        ) from error
