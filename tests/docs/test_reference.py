"""The reference pages name everything that the code takes."""

import re
import runpy
from inspect import signature
from pathlib import Path

import pytest

import bitwright
from bitwright import Override, Placement, Recipe, Selection
from bitwright.compat import vai_q_onnx
from bitwright.compat.neural_compressor import weight_only
from bitwright.compat.onnxruntime import matmul_nbits_quantizer, quantize_static
from bitwright.compat.onnxruntime.options import OPTIONS
from bitwright.compat.vai_q_onnx.options import OLD_NAMES
from bitwright.compat.vai_q_onnx.options import OPTIONS as VITIS_OPTIONS
from bitwright.data import PREPROCESS_PRESETS
from bitwright.recipe import (
    AWQ,
    FineTuning,
    RangeMethod,
    RoundingMethod,
    WeightOnly,
    WeightOverride,
)

DOCS = Path(__file__).parents[2] / "docs"


def quoted(page):
    """Return what stands between backticks on a page, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`\n]+)`", text))


PAGE = runpy.run_path(str(DOCS.parent / "scripts" / "write_recipe_page.py"))


def test_the_fields_of_recipes_are_those_of_the_code():
    written = PAGE["PAGE"].read_text(encoding="utf-8")
    assert PAGE["write_page"]() == written, "run `python scripts/write_recipe_page.py`"


@pytest.mark.parametrize("script", ["options", "commands", "rules"])
def test_the_other_tables_are_those_of_the_code(script):
    made = runpy.run_path(str(DOCS.parent / "scripts" / f"write_{script}_page.py"))
    written = made["PAGE"].read_text(encoding="utf-8")
    assert made["write_page"]() == written, "run `make guides`"


def test_what_is_written_by_hand_fits_into_25_000_words():
    generated = {DOCS / "api.md", *(DOCS / "reference").glob("*.md")}
    pages = [page for page in DOCS.rglob("*.md") if page not in generated]
    # What commands print is recorded, and the bars of a table are no words.
    texts = [
        re.sub(r"^```text\n.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for page in pages
    ]
    assert sum(bool(re.search(r"\w", word)) for text in texts for word in text.split()) <= 25_000


def test_every_section_and_every_named_recipe_is_on_that_page():
    named = quoted("reference/recipes.md")
    kinds = (Recipe, Selection, Placement, Override, WeightOnly, *RangeMethod.__args__)
    assert {name for kind in kinds for name in kind.__struct_fields__} <= named
    assert {*bitwright.RECIPES} <= named


def test_every_field_says_what_it_is():
    rows = re.findall(r"^\| `\w+` \|.*\|$", (DOCS / "reference" / "recipes.md").read_text(), re.M)
    assert len(rows) > 200
    assert not [row for row in rows if row.endswith("|  |")]


@pytest.mark.parametrize("kind", [WeightOnly, WeightOverride, AWQ, *RoundingMethod.__args__])
def test_every_field_of_weight_only_recipes(kind):
    assert set(kind.__struct_fields__) <= quoted("reference/recipes.md")
    text = (DOCS / "reference" / "recipes.md").read_text(encoding="utf-8")
    assert f"\n## {kind.__name__}\n" in text


def test_every_range_method_every_way_to_fine_tune_and_every_target():
    methods = (*RangeMethod.__args__, *FineTuning.__args__)
    assert {method.__struct_config__.tag for method in methods} <= quoted("recipes.md")
    assert {*bitwright.TARGETS} <= quoted("targets.md")


def test_every_key_of_a_plan():
    assert set(bitwright.QuantPlan.__struct_fields__) <= quoted("plan.md")


def test_every_argument_and_option_of_quantize_static():
    assert set(signature(quantize_static).parameters) <= quoted("from-onnxruntime.md")
    assert set(OPTIONS) <= quoted("reference/options.md")


def test_every_argument_and_option_of_vai_q_onnx():
    named = quoted("from-vitis-ai.md") | quoted("reference/options.md")
    assert set(signature(vai_q_onnx.quantize_static).parameters) - {"others"} <= named
    assert {*VITIS_OPTIONS, *OLD_NAMES} <= named


def test_every_function_of_neural_compressor_and_every_nbits_configuration():
    named = quoted("from-neural-compressor.md")
    assert {*weight_only.__all__} <= named
    parameters = {
        name
        for function in ("rtn_quantize", "awq_quantize", "gptq_quantize")
        for name in signature(getattr(weight_only, function)).parameters
    }
    assert parameters - {"model"} <= named
    configs = {name for name in matmul_nbits_quantizer.__all__ if name.endswith("Config")}
    assert configs - {"WeightOnlyQuantConfig"} <= named


def test_every_preprocessing_key_and_preset():
    fields = set(bitwright.ImagePreprocess.__struct_fields__)
    assert fields | set(PREPROCESS_PRESETS) <= quoted("data.md")


def test_every_error():
    errors = {name for name in bitwright.__all__ if name.endswith("Error")} - {"BitwrightError"}
    assert errors <= quoted("errors.md")


def errors_of_the_package():
    from bitwright import errors

    found = (getattr(errors, name) for name in errors.__all__)
    return [one for one in found if isinstance(one, type) and issubclass(one, Exception)]


def test_every_error_has_its_meaning_and_its_remedy():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", (DOCS / "errors.md").read_text(), re.M)
    assert {name for name, _, _ in rows} == {kind.__name__ for kind in errors_of_the_package()}
    said = {name: meaning for name, meaning, _ in rows}
    for kind in errors_of_the_package():
        for base in kind.__bases__:
            # What it is besides is said, but for the root of all.
            if base.__name__ not in ("BitwrightError", "Exception"):
                assert f"`{base.__name__}`" in said[kind.__name__]


def test_every_algorithm_is_explained_where_its_file_is():
    import bitwright

    text = (DOCS / "algorithms.md").read_text()
    source = Path(bitwright.__file__).parent
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert len(named) > 15
    assert not [path for path in named if not (source / path).exists()]
    papers = {
        number
        for folder in ("equalize", "rounding", "learning")
        for path in (source / folder).rglob("*.py")
        for number in re.findall(r"arXiv:(\d{4}\.\d{5})", path.read_text())
    }
    assert papers <= set(re.findall(r"arXiv:(\d{4}\.\d{5})", text))
    methods = {kind.__struct_config__.tag for kind in RangeMethod.__args__}
    assert methods <= set(re.findall(r"^\| `([\w-]+)` \|", text, re.M))
