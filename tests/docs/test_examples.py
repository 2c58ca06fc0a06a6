"""Every example in the README and in docs/ is run, so that none of them can become untrue."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import bitwright
from bitwright.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    return FENCE.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with what the examples take for granted: models, an array, a folder of images."""
    from PIL import Image

    demo = bitwright.load_demo()
    (tmp_path / "model.onnx").write_bytes(demo.model_path.read_bytes())
    trained = ROOT / "tests" / "fixtures" / "qat_functions_script.onnx"
    (tmp_path / "trained.onnx").write_bytes(trained.read_bytes())
    np.save(tmp_path / "calibration.npy", demo.calibration[:16])
    (tmp_path / "images").mkdir()
    for index, image in enumerate(demo.calibration[:10]):
        pixels = (image[0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index:02}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_run_in_the_order_they_are_read(page, workplace, capsys):
    names = {"__name__": "__example__"}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, f"{page.name} example", "exec"), names)
        elif language == "bash":
            for line in code.splitlines():
                words = shlex.split(line)
                assert words[0] == "bitwright", line
                assert main(words[1:]) == 0, (line, capsys.readouterr().err)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_in_json_are_recipes(page):
    for language, code in blocks(page):
        if language == "json":
            bitwright.load_recipe(json.loads(code))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
