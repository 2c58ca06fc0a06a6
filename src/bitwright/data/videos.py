"""Videos as calibration data: one frame of each second, as images; needs PyAV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.data.images import image_to_array, one_image_input
from bitwright.data.specs import InputSpec
from bitwright.errors import DataError, MissingPackageError

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
