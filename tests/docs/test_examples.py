"""Every example in the README and in docs/ is run, so that none of them can become untrue."""

import json
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from support.folders import make_folder
from support.language_models import make_decoder
from support.models import make_transformer
from support.real_folder import make_real_folder, make_real_workplace
from support.shown_output import plain, run_page

import bitwright
from bitwright.cli import main
from bitwright.cli.app import _make_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page):
    """The path of a page below docs/, which tells it from others of its name."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def blocks(page):
    return FENCE.findall(page.read_text(encoding="utf-8"))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with what the examples take for granted: models, an array, images, an export."""
    from PIL import Image

    demo = bitwright.load_demo()
    (tmp_path / "model.onnx").write_bytes(demo.model_path.read_bytes())
    trained = ROOT / "tests" / "fixtures" / "qat_functions_script.onnx"
    (tmp_path / "trained.onnx").write_bytes(trained.read_bytes())
    onnx.save(make_decoder(), tmp_path / "decoder.onnx")
    onnx.save(make_transformer(), tmp_path / "encoder.onnx")
    make_folder(tmp_path / "exported")
    np.save(tmp_path / "calibration.npy", demo.calibration[:16])
    (tmp_path / "images").mkdir()
    for index, image in enumerate(demo.calibration[:10]):
        pixels = (image[0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index:02}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]
SLOW = ("assess.md", "targets.md", "npu.md")
EXAMPLES = [
    pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else (), id=name_of(page))
    for page in PAGES
    if page not in TUTORIALS and blocks(page)
]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_tutorial_runs_on_real_models_and_prints_what_it_shows(page, tmp_path):
    make_real_folder(tmp_path)
    make_folder(tmp_path / "exported")
    shown = page.read_text(encoding="utf-8")
    assert plain(run_page(shown, tmp_path)) == plain(shown)


def test_every_tutorial_shows_what_its_commands_print():
    for page in TUTORIALS:
        kinds = [language for language, _ in blocks(page)]
        assert "text" in kinds, page
        assert {"bash", "python"} & {*kinds}, page


@pytest.mark.slow
@pytest.mark.parametrize("page", [PAGES[0], ROOT / "docs" / "index.md"], ids=name_of)
def test_the_first_pages_run_on_a_real_model(page, workplace, capsys):
    make_real_workplace(workplace)
    run_blocks(page, capsys)


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_run_in_the_order_they_are_read(page, workplace, capsys):
    run_blocks(page, capsys)


def run_blocks(page, capsys):
    names = {"__name__": "__example__"}
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, f"{page.name} example", "exec"), names)
        elif language == "bash":
            for line in code.splitlines():
                words = shlex.split(line)
                assert words[0] == "bitwright", line
                assert main(words[1:]) == 0, (line, capsys.readouterr().err)


NOTEBOOKS = runpy.run_path(str(ROOT / "scripts" / "notebooks.py"))
SCRIPTS = NOTEBOOKS["ARGUMENTS"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_notebooks_are_those_of_the_scripts(name):
    found = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert found == NOTEBOOKS["make_notebook"](name), "run scripts/notebooks.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_notebooks_run(name, workplace):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbclient and ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    before = {path.name for path in workplace.iterdir()}
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "."}}).execute()
    assert {path.name for path in workplace.iterdir()} - before
    assert notebook.cells[-1].outputs


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.sampled(2)
def test_the_scripts_run(name, workplace, capsys):
    script = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    before = {path.name for path in workplace.iterdir()}
    script["main"](*SCRIPTS[name])
    assert {path.name for path in workplace.iterdir()} - before
    assert capsys.readouterr().out


def test_every_script_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipes_in_json_are_recipes(page):
    for language, code in blocks(page):
        if language == "json":
            bitwright.load_recipe(json.loads(code))


def anchors(page):
    """The headings of a page as links name them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        yield words.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_every_page_is_found_from_the_first():
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert all(f"({name_of(page)})" in first for page in PAGES[1:] if page.name != "index.md")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES[1:] if page.parent.name != "reference" and page.name[:5] != "from-"],
    ids=name_of,
)
def test_every_option_that_is_named_is_one_of_the_command(page):
    app = typer.main.get_command(_make_app())
    parameters = [p for command in (app, *app.commands.values()) for p in command.params]
    known = {"--as", "--side-by-side"}  # of python -m bitwright.compat
    known |= {name for p in parameters for name in (*p.opts, *p.secondary_opts)}
    # Benchmarks and other programs have options of their own.
    others = (
        r"`(?:python|pip|uvx?|pipx|conda) [^`]*`|^\$ (?!bitwright).*$|^ .*python benchmarks/.*$"
    )
    text = re.sub(others, "", page.read_text(encoding="utf-8"), flags=re.M)
    named = re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
    assert set(named) <= known


def test_the_reference_has_every_public_name():
    script = runpy.run_path(str(ROOT / "scripts" / "write_api_page.py"))
    written = script["PAGE"].read_text(encoding="utf-8")
    assert script["write_page"]() == written, "run `python scripts/write_api_page.py`"


def test_the_website_has_every_page():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [name_of(page) for page in PAGES[1:] if f": {name_of(page)}\n" not in menu] == []
