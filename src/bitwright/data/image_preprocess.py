"""How an image becomes the array that a model reads: size, crop, scale, layout of pixels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from bitwright.data.specs import Array, InputSpec, show_shape
from bitwright.errors import DataError, MissingPackageError, RecipeError, did_you_mean
from bitwright.support.settings import Settings

MAX_SIDE = 1 << 14
"""Pixels in a side up to which images are resized: above the input of any model."""

Size: TypeAlias = tuple[int, int]

_RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""Numbers of Pillow's filters, as configurations have them."""


class ImagePreprocess(Settings, frozen=True, kw_only=True):
    """How an image file becomes a model input: resize, crop, scale, normalise, arrange.

    The value of a pixel v becomes (v * scale - mean) / std. What is left out follows the model:
    the size, the layout and the number of channels are read from the shape of its input.

    >>> ImagePreprocess.parse("resize=256,crop=224,layout=nchw").crop
    (224, 224)
    >>> ImagePreprocess(resize=(32, 48), letterbox=True, pad=114).resize
    (32, 48)
    """

    resize: int | Size | None = None
    """Length of the shortest side (ratio kept), or height and width; None: the model's size."""
    letterbox: bool = False
    """Keep the ratio when resizing to height and width, and fill the rest with `pad`."""
    pad: int = 0
    """The pixel value (0 to 255) of a letterbox's border."""
    crop: Size | None = None
    """Height and width cut out of the centre."""
    interpolation: Literal["bilinear", "bicubic", "nearest"] = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    """Subtracted after scaling: one number, or one for each channel in the model's order."""
    std: tuple[float, ...] = (1.0,)
    layout: Literal["nchw", "nhwc"] | None = None
    color: Literal["rgb", "bgr", "gray"] | None = None
    """None: gray for a model with one channel, else rgb."""
    dtype: str | None = None
    """None: the type of the model's input."""

    def __post_init__(self) -> None:
        for name, size in (("resize", self.resize), ("crop", self.crop)):
            for side in size if isinstance(size, tuple) else (size,):
                if side is not None and side < 1:
                    raise RecipeError(f"{name} must be at least 1 pixel, not {side}.")
                if side is not None and side > MAX_SIDE:
                    raise RecipeError(f"{name} must be at most {MAX_SIDE} pixels, not {side}.")
        if self.letterbox and isinstance(self.resize, int):
            raise RecipeError(
                f"letterbox needs a height and a width, not resize={self.resize}; "
                f"give resize={self.resize}x{self.resize}, or leave resize out."
            )
        if not 0 <= self.pad <= 255:
            raise RecipeError(f"pad must be a pixel value from 0 to 255, not {self.pad}.")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, 3):
                raise RecipeError(
                    f"{name} needs one number or three (one for each channel), not {len(values)}."
                )
        if not np.all(np.isfinite((self.scale, *self.mean, *self.std))) or 0 in self.std:
            raise RecipeError("scale, mean and std must be finite, and std must not be 0.")

    @classmethod
    def parse(cls, text: str) -> ImagePreprocess:
        """Read a preset's name, `key=value` pairs, or a preset followed by pairs that change it.

        >>> ImagePreprocess.parse("imagenet,layout=nhwc").mean
        (0.485, 0.456, 0.406)
        >>> ImagePreprocess.parse("reszie=256")
        Traceback (most recent call last):
            ...
        bitwright.errors.RecipeError: unknown preprocessing key 'reszie'. Did you mean 'resize'?
        """
        start = cls()
        changes: dict[str, Any] = {}
        for position, part in enumerate(text.split(",")):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                if position or key not in PREPROCESS_PRESETS:
                    raise RecipeError(
                        f"unknown preprocessing {key!r}."
                        f"{did_you_mean(key, PREPROCESS_PRESETS)} "
                        "Write a preset's name first, then key=value pairs, "
                        "such as 'resize=256,crop=224'."
                    )
                start = PREPROCESS_PRESETS[key]
            elif key not in _PARSERS:
                raise RecipeError(
                    f"unknown preprocessing key {key!r}.{did_you_mean(key, _PARSERS)}"
                )
            elif key in changes:
                raise RecipeError(f"the preprocessing gives {key!r} twice; give it once.")
            else:
                changes[key] = _PARSERS[key](key, value)
        return start.replace(**changes)

    @classmethod
    def from_config(cls, path: Path) -> ImagePreprocess:
        """Read the `preprocessor_config.json` that transformers keeps beside a vision model."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{str(path)!r} cannot be read ({error}); give a transform.") from error
        changes: dict[str, Any] = {}
        if given.get("do_resize", True):
            changes["resize"] = _configured_size(given.get("size", 224), path)
        if given.get("do_center_crop", "crop_size" in given):
            crop = _configured_size(given.get("crop_size", 224), path)
            changes["crop"] = (crop, crop) if isinstance(crop, int) else crop
        if not given.get("do_rescale", True):
            changes["scale"] = 1.0
        elif "rescale_factor" in given:
            changes["scale"] = given["rescale_factor"]
        if given.get("do_normalize", True) and "image_mean" in given:
            changes["mean"] = tuple(given["image_mean"])
            changes["std"] = tuple(given["image_std"])
        changes["interpolation"] = _RESAMPLING.get(given.get("resample", 2), "bilinear")
        return cls().replace(**changes)

    def apply(self, image: Any, spec: InputSpec, *, name: str = "image") -> Array:
        """Turn one Pillow image into an array for the input, without the batch dimension.

        >>> from PIL import Image
        >>> spec = InputSpec("x", np.dtype("float32"), (1, 3, 4, 4))
        >>> ImagePreprocess().apply(Image.new("RGB", (8, 6), (255, 0, 0)), spec)[:, 0, 0].tolist()
        [1.0, 0.0, 0.0]
        """
        layout, channels, size = _image_shape(spec, self.layout)
        color = self.color or ("gray" if channels == 1 else "rgb")
        if channels not in (None, 1 if color == "gray" else 3):
            raise DataError(
                f"input {spec.name!r} {show_shape(spec.shape)} takes {channels} channels, but "
                f"color={color} gives {1 if color == 'gray' else 3}; "
                "choose another color or layout, or give .npy files."
            )
        if image.mode.startswith(("I", "F")):
            # Pillow clips these to 255 instead of scaling them.
            raise DataError(
                f"{name} has more than 8 bits a channel (mode {image.mode}); "
                "convert it to 8 bits, or give .npy files."
            )
        image = image.convert("L" if color == "gray" else "RGB")
        image = self._resize(image, size, spec)
        crop = self.crop or (size if isinstance(self.resize, int) else None)
        if crop is not None:
            image = _crop(image, crop, name)
        pixels = np.asarray(image)
        pixels = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        if color == "bgr":
            pixels = pixels[:, :, ::-1]
        values = self._normalise(pixels, np.dtype(self.dtype or spec.dtype), spec)
        return np.ascontiguousarray(values.transpose(2, 0, 1) if layout == "nchw" else values)

    def lacks_size(self, spec: InputSpec) -> bool:
        """Return whether neither this nor the input says how large images are to be."""
        given = (self.resize, self.crop)
        return given == (None, None) and _image_shape(spec, self.layout)[2] is None

    def _resize(self, image: Any, model_size: Size | None, spec: InputSpec) -> Any:
        target = self.resize
        if target is None and self.crop is None:
            target = model_size
        if self.lacks_size(spec):
            raise ask_for(
                f"input {spec.name!r} {show_shape(spec.shape)} leaves the size of images open",
                "resize=224x224",
            )
        if target is None:
            return image
        method = load_pillow().Resampling[self.interpolation.upper()]
        width, height = image.size
        if isinstance(target, int):
            # The shorter side becomes `target`; the longer one is cut to whole pixels, which is
            # what torchvision's Resize does.
            short = min(width, height)
            resized = (target * width // short, target * height // short)
            if max(resized) > max(MAX_SIDE, width, height):
                raise DataError(
                    f"an image of {height}x{width} pixels would become {resized[1]}x{resized[0]} "
                    f"with resize={target}; give resize=HxW, or leave it out of the data."
                )
            return image.resize(resized, method)
        if not self.letterbox:
            return image.resize((target[1], target[0]), method)
        ratio = min(target[0] / height, target[1] / width)
        inner = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        fill = self.pad if image.mode == "L" else (self.pad,) * 3
        canvas = load_pillow().new(image.mode, (target[1], target[0]), fill)
        left, top = (target[1] - inner[0]) // 2, (target[0] - inner[1]) // 2
        canvas.paste(image.resize(inner, method), (left, top))
        return canvas

    def _normalise(self, pixels: Array, dtype: np.dtype[Any], spec: InputSpec) -> Array:
        if dtype.kind in "iu":
            if (self.scale, set(self.mean), set(self.std)) != (1.0, {0.0}, {1.0}):
                raise DataError(
                    f"input {spec.name!r} takes {dtype} pixels, which cannot be scaled to "
                    "fractions; use the preprocessing 'raw' (scale=1, mean=0, std=1)."
                )
            return pixels.astype(dtype)
        for label, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, pixels.shape[2]):
                raise DataError(
                    f"{label} has {len(values)} numbers for an image with {pixels.shape[2]} "
                    "channel; give one number."
                )
        scaled = pixels.astype(np.float32) * np.float32(self.scale)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        normalised: Array = ((scaled - mean) / std).astype(dtype)
        return normalised


PREPROCESS_PRESETS: dict[str, ImagePreprocess] = {
    # The pipeline of torchvision's and most published ImageNet classifiers.
    "imagenet": ImagePreprocess(
        resize=256, crop=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    "unit": ImagePreprocess(),
    "raw": ImagePreprocess(scale=1.0),
}


def ask_for(sentence: str, pair: str, instead: str = "") -> DataError:
    """Return an error that names the option which says what an image does not."""
    return DataError(
        sentence,
        remedy=f"give transform={pair!r}{instead}",
        command=f"give --transform {pair}{instead}",
    )


def no_images(what: str) -> DataError:
    """Return an error for images' preprocessing where the data is none."""
    return DataError(
        f"image preprocessing was given, but {what}",
        remedy="leave transform out, or give the folder of images",
        command="leave --transform out, or give the folder of images",
    )


Transform: TypeAlias = ImagePreprocess | str | Callable[[Any], Any] | None
"""How images become arrays, as a value or in words; or a function for each item of the data."""


def _image_shape(
    spec: InputSpec, layout: Literal["nchw", "nhwc"] | None
) -> tuple[Literal["nchw", "nhwc"], int | None, Size | None]:
    """Read layout, channels and size from the input's shape and the user's settings."""
    dims: tuple[int | str | None, ...] = (None, None, None)
    if spec.shape is not None:
        if len(spec.shape) not in (3, 4):
            raise DataError(
                f"input {spec.name!r} {show_shape(spec.shape)} is not the shape of an image; "
                "give .npy files instead of images."
            )
        dims = spec.shape[-3:]
    if layout is None:
        first, last = dims[0] in (1, 3), dims[2] in (1, 3)
        if first == last:
            raise ask_for(
                f"the layout of input {spec.name!r} {show_shape(spec.shape)} cannot be told from "
                "its shape",
                "layout=nchw",
                " or layout=nhwc",
            )
        layout = "nchw" if first else "nhwc"
    channels, height, width = dims if layout == "nchw" else (dims[2], dims[0], dims[1])
    size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
    return layout, channels if isinstance(channels, int) else None, size


def _configured_size(given: Any, path: Path) -> int | Size:
    """Return a size as transformers writes it: a number, height and width, or the shorter side."""
    match given:
        case int() | {"shortest_edge": int()}:
            return int(given if isinstance(given, int) else given["shortest_edge"])
        case {"height": int(height), "width": int(width)}:
            return height, width
    raise DataError(
        f"{str(path)!r} has the size {given}, which is none of those known here; give a transform."
    )


def _crop(image: Any, size: Size, name: str) -> Any:
    (width, height), (tall, wide) = image.size, size
    if tall > height or wide > width:
        raise DataError(
            f"{name} is {height}x{width} after resizing, smaller than the crop {tall}x{wide}; "
            "give a larger resize."
        )
    # torchvision's CenterCrop rounds the odd pixel the same way.
    top, left = round((height - tall) / 2), round((width - wide) / 2)
    return image.crop((left, top, left + wide, top + tall))


def load_pillow() -> Any:
    """Return the module of Pillow that opens images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError(
            "reading images needs Pillow, which is not installed; "
            "run: pip install 'bitwright[images]'"
        ) from error
    return Image


def _parse_size(key: str, text: str) -> Size:
    """Read '224' or '224x320' (height first)."""
    sides = text.lower().replace("/", "x").split("x")
    try:
        numbers = [int(side) for side in sides]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise RecipeError(f"{key}={text} is no size; write {key}=224 or {key}=224x320.")
    return numbers[0], numbers[-1]


def _parse_resize(key: str, text: str) -> int | Size:
    size = _parse_size(key, text)
    return size[0] if text.isdigit() else size


def _parse_numbers(key: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split("/"))
    except ValueError as error:
        raise RecipeError(
            f"{key}={text} is not a list of numbers; write {key}=0.5 or {key}=0.485/0.456/0.406."
        ) from error


def _parse_scale(key: str, text: str) -> float:
    """Read '0.0039' or '1/255'."""
    try:
        over, _, under = text.partition("/")
        return float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError) as error:
        raise RecipeError(f"{key}={text} is no number; write {key}=1/255 or {key}=1.") from error


def _parse_whole(key: str, text: str) -> int:
    if not text.isdigit():
        raise RecipeError(f"{key}={text} is no whole number; write {key}=114.")
    return int(text)


def _parse_flag(key: str, text: str) -> bool:
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in flags:
        raise RecipeError(f"{key}={text} is neither true nor false; write {key}=true.")
    return flags[text.lower()]


def _parse_word(*words: str) -> Callable[[str, str], str]:
    def parse(key: str, text: str) -> str:
        if text.lower() not in words:
            raise RecipeError(f"{key}={text} is unknown.{did_you_mean(text, words)}")
        return text.lower()

    return parse


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "resize": _parse_resize,
    "letterbox": _parse_flag,
    "pad": _parse_whole,
    "crop": _parse_size,
    "interpolation": _parse_word("bilinear", "bicubic", "nearest"),
    "scale": _parse_scale,
    "mean": _parse_numbers,
    "std": _parse_numbers,
    "layout": _parse_word("nchw", "nhwc"),
    "color": _parse_word("rgb", "bgr", "gray"),
    "dtype": _parse_word("float32", "float16", "float64", "uint8", "int8", "int32"),
}
