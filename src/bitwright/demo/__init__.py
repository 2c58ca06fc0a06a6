"""The demo's model and data: a digit classifier (see `scripts/train_digits.py`) and its images."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from bitwright.errors import DataError
from bitwright.support.array_types import F32, I64, Array

__all__ = ["Demo", "load_demo"]

# The UCI digits count ink in 4x4 blocks of a 32x32 scan, so a pixel goes from 0 to 16.
_LARGEST_PIXEL = 16


@dataclass(frozen=True, slots=True, eq=False)
class Demo:
    """A float model, images to calibrate with, and labelled images that it was not trained on.

    The arrays are float32, shaped [count, 1, 8, 8], with values from 0 to 1: what the model's
    input "image" takes.
    """

    model_path: Path
    calibration: F32
    images: F32
    labels: I64


def load_demo() -> Demo:
    """Load the demo that is shipped with the package.

    >>> demo = load_demo()
    >>> demo.images.shape, demo.calibration.shape, demo.model_path.name
    ((450, 1, 8, 8), (200, 1, 8, 8), 'digits.onnx')
    """
    folder = files(__name__)
    model_path = Path(str(folder / "digits.onnx"))
    if not model_path.is_file():
        raise DataError(
            f"the demo's model is missing at {str(model_path)!r}; reinstall bitwright, unpacked "
            "into a folder and not as a zip file."
        )
    with (folder / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as data:
        return Demo(
            model_path=model_path,
            calibration=_scale(data["calibration"]),
            images=_scale(data["images"]),
            labels=data["labels"].astype(np.int64),
        )


def _scale(pixels: Array) -> F32:
    scaled: F32 = pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL)
    return scaled
