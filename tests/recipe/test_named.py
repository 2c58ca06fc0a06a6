"""Recipes by name, from files, and for a target."""

from __future__ import annotations

import json
import re

import pytest

from bitwright import load_recipe
from bitwright.errors import RecipeError, TargetError
from bitwright.numerics.types import UINT16
from bitwright.recipe import GPTQ, HQQ, RECIPES, TARGETS, Override, Percentile, Recipe, Selection
from bitwright.recipe.named import read_recipe


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_a_recipe_survives_a_file(tmp_path, suffix):
    recipe = Recipe(
        name="mine",
        per_channel=True,
        ranges=Percentile(percentile=99.9),
        select=Selection(exclude=("re:head/.*",)),
        overrides={"x": Override(qtype=UINT16)},
    )
    text = recipe.to_json()
    if suffix != ".json":
        yaml = pytest.importorskip("yaml")
        text = yaml.safe_dump(json.loads(text))
    path = tmp_path / f"recipe{suffix}"
    path.write_text(text)
    assert load_recipe(path) == recipe
    assert load_recipe(str(path)) == recipe


def test_a_short_yaml_file_changes_a_named_recipe(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "recipe.yaml"
    path.write_text("base: a16w8\nranges: {method: percentile, percentile: 99.9}\n")
    recipe = load_recipe(path)
    assert recipe.activation == UINT16
    assert recipe.per_channel
    assert recipe.ranges == Percentile(percentile=99.9)
    assert recipe.name == "a16w8 (changed)"


def test_a_section_changes_only_the_fields_that_it_names():
    base = load_recipe("int4").weights
    recipe = load_recipe({"base": "int4", "weights": {"block_size": 128}})
    assert recipe.weights == base.replace(block_size=128)
    nested = {"base": "int4", "weights": {"rounding": {"damping": 0.05}}}
    assert load_recipe(nested).weights == base.replace(rounding=GPTQ(damping=0.05))
    assert load_recipe({"base": "int4-awq", "weights": {"awq": None}}).weights.awq is None


def test_another_method_replaces_its_section():
    recipe = load_recipe({"base": "int4", "weights": {"rounding": {"method": "hqq"}}})
    assert recipe.weights == load_recipe("int4").weights.replace(rounding=HQQ())


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_loads_and_survives_json(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_recipe(target):
    assert TARGETS[target].recipe in RECIPES


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "must be a mapping"),
        ('{"per_channel": }', "is not JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, said):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(RecipeError, match=rf"mine\.json.*{said}"):
        load_recipe(path)


def test_broken_yaml_is_named(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("a: [1,\nb: }")
    with pytest.raises(RecipeError, match=r"mine\.yaml.*is not YAML") as error:
        load_recipe(path)
    assert "\n" not in str(error.value)


def test_yaml_runs_no_code(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("name: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(RecipeError, match="is not YAML"):
        load_recipe(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"cannot read the recipe '.*none\.json'"):
        load_recipe(tmp_path / "none.json")


def test_an_unknown_target_is_an_error_with_a_suggestion():
    with pytest.raises(TargetError, match=r"unknown target 'cpuu'\. Did you mean 'cpu'"):
        load_recipe(None, "cpuu")


@pytest.mark.parametrize(
    ("recipe", "target", "sentence"),
    [
        ("int8", "npu-cnn", "'int8' is not for the target npu-cnn: it has no limits"),
        ("int8-dynamic", "npu-transformer", "it has the mode dynamic"),
        (
            {"base": "npu-transformer", "format": "qoperator"},
            "npu-transformer",
            "the format qoperator",
        ),
    ],
)
def test_a_recipe_that_its_target_cannot_run_is_refused(recipe, target, sentence):
    with pytest.raises(TargetError, match=re.escape(sentence)):
        load_recipe(recipe, target)


@pytest.mark.parametrize(
    ("recipe", "target"),
    [("xint8", "npu-cnn"), ("int8", "npu-transformer"), ("int8-dynamic", "cpu")],
)
def test_a_recipe_that_its_target_can_run_stays_as_it_is(recipe, target):
    assert load_recipe(recipe, target) == load_recipe(recipe)


@pytest.mark.parametrize(("old", "now"), [("fp16", "float16"), ("BF16", "bfloat16")])
def test_the_recipe_of_pairs_is_still_found_by_the_name_that_it_had(old, now):
    with pytest.warns(FutureWarning, match=f"is called '{now}-pairs' now: .*'{now}' converts"):
        found = load_recipe(old)
    assert found == load_recipe(f"{now}-pairs") and found.format == "extended"
    assert load_recipe(now).mode == "cast"


@pytest.mark.parametrize(
    "recipe", [{None: 1}, {"base": "int8", None: 1}, {"base": "int8", "select": {None: 3}}]
)
def test_a_key_that_is_no_text_is_one_sentence(recipe):
    with pytest.raises(RecipeError, match="names of options are text, which None is not"):
        read_recipe(recipe)
