"""Text lines drawn with Pillow, and the recognizer that reads them.

The recognizer is the real PP-OCRv4 model that the PyPI package `rapidocr-onnxruntime` carries.
"""

from __future__ import annotations

import importlib.util
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

HEIGHT, WIDTH = 48, 320

WORDS = (
    "river mountain window yellow garden station market silver people morning letter bridge "
    "summer paper doctor engine island travel coffee number winter school forest player camera "
    "pocket ticket animal orange butter castle dinner shadow singer bottle circle planet rocket"
).split()


def model_path(name: str) -> Path:
    """Return a model of the package, without importing the package."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("this needs the recognizer: pip install --no-deps -r models.txt")
    return Path(next(iter(spec.submodule_search_locations))) / "models" / name


def recognizer_path() -> Path:
    return model_path("ch_PP-OCRv4_rec_infer.onnx")


@dataclass(frozen=True)
class TextLine:
    text: str
    array: np.ndarray
    """What the recognizer takes: float32, (1, 3, 48, 320), values in [-1, 1]."""


def _make_text(chooser: random.Random) -> str:
    parts = []
    for _ in range(chooser.randint(1, 3)):
        kind = chooser.random()
        if kind < 0.6:
            word = chooser.choice(WORDS)
            parts.append(chooser.choice((word, word.upper(), word.capitalize())))
        elif kind < 0.85:
            parts.append(str(chooser.randint(0, 99999)))
        else:
            parts.append(f"{chooser.randint(0, 999)}.{chooser.randint(0, 99):02d}")
    return " ".join(parts)[:22]


def _draw(text: str, chooser: random.Random) -> np.ndarray:
    """Draw dark on light or light on dark, a little turned, blurred and noisy."""
    size = chooser.randint(20, 34)
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    background = chooser.randint(150, 255)
    ink = chooser.randint(0, 110)
    if chooser.random() < 0.25:
        background, ink = ink, background
    margin = chooser.randint(2, 8)
    canvas = Image.new(
        "RGB",
        (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin),
        (background, background, chooser.randint(max(background - 30, 0), background)),
    )
    ImageDraw.Draw(canvas).text((margin - left, margin - top), text, font=font, fill=(ink,) * 3)
    canvas = canvas.rotate(chooser.uniform(-2.5, 2.5), expand=True, fillcolor=(background,) * 3)
    canvas = canvas.filter(ImageFilter.GaussianBlur(chooser.uniform(0.0, 1.3)))
    width = min(WIDTH, max(1, round(canvas.width * HEIGHT / canvas.height)))
    pixels = np.asarray(canvas.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    noise = np.random.default_rng(chooser.randrange(2**32)).normal(0, 28, pixels.shape)
    line = np.clip(pixels + noise, 0, 255)[:, :, ::-1] / 127.5 - 1
    padded = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    padded[:, :width] = line
    return np.ascontiguousarray(padded.transpose(2, 0, 1)[None])


def make_lines(count: int, seed: int) -> list[TextLine]:
    """Return drawn lines; the same seed gives the same pixels."""
    chooser = random.Random(seed)
    lines = []
    for _ in range(count):
        text = _make_text(chooser)
        lines.append(TextLine(text, _draw(text, chooser)))
    return lines


def alphabet(path: Path | None = None) -> list[str]:
    """Return the characters of the recognizer's classes; class 0 is the blank."""
    model = onnx.load(path or recognizer_path())
    [characters] = [p.value for p in model.metadata_props if p.key == "character"]
    return ["", *characters.splitlines(), " "]


def decode(scores: np.ndarray, characters: list[str]) -> str:
    """Greedy CTC: repeated classes count once, blanks not at all."""
    best = scores[0].argmax(axis=-1)
    kept = [k for i, k in enumerate(best) if k and (i == 0 or k != best[i - 1])]
    return "".join(characters[k] for k in kept).strip()
