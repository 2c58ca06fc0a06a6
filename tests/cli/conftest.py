import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bitwright import load_demo
from bitwright.assess.clock import read_clock
from bitwright.cli import main


@dataclass
class Answer:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let no test wait for the clock, or depend on what it says."""
    found = read_clock([(2.0, 1.0)] * 5)

    def time_models(models, samples, **options):
        return [found] * (len(models) - 1)

    for module in ("jobs.timing", "assess.bench", "assess.clock"):
        monkeypatch.setattr(f"bitwright.{module}.time_models", time_models)
    return found


@pytest.fixture
def run(capsys, monkeypatch):
    # A slow machine would tell its progress where a test expects no word.
    monkeypatch.setattr("bitwright.support.progress.SECONDS_BETWEEN_LINES", math.inf)

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def model():
    return load_demo().model_path


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "calibration.npy"
    np.save(path, load_demo().calibration[:16])
    return path


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    for index, image in enumerate(load_demo().calibration[:10]):
        pixels = (image[0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


@pytest.fixture(scope="session")
def quantized(tmp_path_factory, model, data):
    path = tmp_path_factory.mktemp("quantized") / "q.onnx"
    words = ["--data", str(data), "--for", "size", "--quiet"]
    assert main(["quantize", str(model), "-o", str(path), *words]) == 0
    return path


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out.onnx"
