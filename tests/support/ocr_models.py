"""Real models from PyPI packages where these are installed, and pictures for them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest


def real_model(package, relative):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"the package {package} is not installed")
    path = Path(spec.submodule_search_locations[0]) / relative
    if not path.is_file():
        pytest.skip(f"{package} does not ship {relative}")
    return path


def render_lines(count, height, width):
    """Lines of text as the OCR models see them: dark on light, in [-1, 1]."""
    image = pytest.importorskip("PIL.Image")
    draw = pytest.importorskip("PIL.ImageDraw")
    font = pytest.importorskip("PIL.ImageFont").load_default(size=max(height // 2, 12))
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ")
    samples = []
    for _ in range(count):
        canvas = image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(200, 256, 3)))
        pen = draw.Draw(canvas)
        for row in range(max(1, height // 64)):
            text = "".join(rng.choice(letters, 24))
            ink = tuple(int(v) for v in rng.integers(0, 80, 3))
            pen.text((4, 4 + 64 * row), text, fill=ink, font=font)
        pixels = np.asarray(canvas, np.float32).transpose(2, 0, 1)[None]
        samples.append({"x": (pixels / 255 - 0.5) / 0.5})
    return samples


OCR = {
    # Two softmax numbers a picture, some of them on the fence: a coarse measure.
    "cls": ("models/ch_ppocr_mobile_v2.0_cls_infer.onnx", 48, 192, 10),
    "det": ("models/ch_PP-OCRv4_det_infer.onnx", 160, 160, 10),
    "rec": ("models/ch_PP-OCRv4_rec_infer.onnx", 48, 160, 8),
}


def ocr_path(kind):
    return real_model("rapidocr_onnxruntime", OCR[kind][0])


def ocr_case(kind, count=8):
    _, height, width, bound = OCR[kind]
    return ocr_path(kind), render_lines(count, height, width), bound
