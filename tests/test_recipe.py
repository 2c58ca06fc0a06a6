"""Recipes: the same value in Python, JSON, YAML and a dict; contradictions refused at once."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.errors import RecipeError, TargetError
from bitwright.numerics.types import INT4, INT8, INT16, UINT8, UINT16
from bitwright.recipe import (
    MSE,
    RECIPES,
    TARGETS,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    Override,
    Percentile,
    Placement,
    Recipe,
    Selection,
    load_recipe,
)

names = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8)
methods = st.one_of(
    st.builds(
        MinMax,
        symmetric=st.booleans(),
        moving_average=st.none() | st.floats(0.01, 1.0),
    ),
    st.builds(Percentile, percentile=st.floats(1.0, 100.0)),
    st.builds(Entropy, bins=st.integers(512, 4096), levels=st.integers(2, 128)),
    st.builds(MSE, symmetric=st.booleans()),
    st.just(Distribution()),
    st.just(LayerwisePercentile(candidates=(99.0, 100.0), metric="mse")),
)
recipes = st.builds(
    Recipe,
    name=names,
    activation=st.sampled_from([UINT8, UINT16]),
    weight=st.sampled_from([INT8, INT4]),
    ranges=methods,
    weight_ranges=methods,
    per_channel=st.booleans(),
    reduce_range=st.booleans(),
    weight_symmetric=st.none() | st.booleans(),
    min_real_range=st.none() | st.floats(1e-6, 1.0),
    block_size=st.sampled_from([0, 2, 32]),
    scales=st.sampled_from(["float", "power-of-two", "int16"]),
    select=st.builds(
        Selection,
        op_types=st.none() | st.tuples(names),
        exclude=st.lists(names, max_size=3).map(tuple),
        subgraphs=st.booleans(),
    ),
    place=st.builds(
        Placement,
        dedicated_pairs=st.booleans(),
        channel_axes=st.dictionaries(names, st.integers(-3, 3), max_size=2),
    ),
    overrides=st.dictionaries(
        names,
        st.builds(Override, qtype=st.none() | st.just(UINT16), axis=st.none() | st.just(1))
        | st.just(Override(scale=(0.5, 0.25), zero_point=(0, 1), axis=0)),
        max_size=2,
    ),
)


@given(recipes)
@settings(max_examples=60, deadline=None)
def test_a_recipe_survives_json(recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert Recipe.from_json(recipe.to_json(indent=0)) == recipe


@given(recipes)
@settings(max_examples=30, deadline=None)
def test_a_recipe_survives_plain_dicts(recipe):
    assert load_recipe(json.loads(recipe.to_json())) == recipe


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


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_loads_and_survives_json(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_recipe(target):
    assert load_recipe(None, target).name in RECIPES


def test_a_recipe_is_frozen():
    with pytest.raises(AttributeError):
        Recipe().per_channel = True


def test_a_default_recipe_is_not_changed_by_what_is_made_of_it():
    changed = Recipe().replace(place=Placement(channel_axes={"Conv": 0}))
    assert changed.place.channel_axes == {"Conv": 0}
    assert Recipe().place.channel_axes == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"per_chanel": True}, "unknown option 'per_chanel'. Did you mean 'per_channel'"),
        ({"select": {"excludes": []}}, "unknown option 'excludes' in 'select'. Did you mean 'excl"),
        ({"place": {"weight_pair": 1}}, "unknown option 'weight_pair' in 'place'. Did you mean 'w"),
        ({"ranges": {"method": "percentil"}}, "unknown method 'percentil' in 'ranges'. Did"),
        ({"ranges": {"method": "mse", "bins": 3}}, "unknown option 'bins' in 'ranges'"),
        ({"overrides": {"x": {"qtyp": "int8"}}}, "unknown option 'qtyp'.*Did you mean 'qtype'"),
        ({"activation": "uint9"}, "unknown .*'uint9'.*Did you mean 'uint"),
        ({"weight": 8}, "a number type is a name such as 'int8', not 8"),
        ({"per_channel": "yes"}, "per_channel.*must be"),
        ({"base": "int88"}, "unknown recipe 'int88'. Did you mean 'int8'"),
        ({"block_size": "big"}, "block_size.*must be"),
        ({"version": 2}, "version"),
    ],
    ids=str,
)
def test_an_unknown_word_is_an_error_with_a_suggestion(data, said):
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"activation": "int8", "weight": "uint8"}, "no kernel"),
        ({"ranges": {"method": "min-mse"}}, "set scales='power-of-two'"),
        ({"ranges": {"method": "non-overflow"}}, "set scales='power-of-two'"),
        ({"restricted_asymmetric": True, "activation": "int8"}, "uint8 activations only"),
        ({"restricted_asymmetric": True, "activation_symmetric": True}, "contradicts"),
        ({"min_real_range": 0}, "must be positive"),
        ({"block_size": 1}, "at least 2"),
        ({"block_size": -4}, "at least 2"),
        ({"select": {"exclude": ["re:("]}}, "not a regular expression"),
        ({"ranges": {"method": "percentile", "percentile": 0}}, r"\(0, 100\]"),
        ({"ranges": {"method": "percentile", "percentile": 101}}, r"\(0, 100\]"),
        ({"ranges": {"method": "minmax", "moving_average": 2}}, r"\(0, 1\]"),
        ({"ranges": {"method": "entropy", "bins": 128}}, "nothing to search"),
        ({"overrides": {"x": {"scale": 0.5}}}, "both scale and zero_point"),
        ({"overrides": {"x": {"rmin": 0.5}}}, "both rmin and rmax"),
        (
            {"overrides": {"x": {"scale": 0.5, "zero_point": 0, "symmetric": True}}},
            "leaves nothing for symmetric",
        ),
        ({"activation": "float8e4m3fn"}, "use one float type for both"),
        (
            {"activation": "float8e4m3fn", "weight": "float8e4m3fn", "reduce_range": True},
            "reduce_range",
        ),
    ],
    ids=str,
)
def test_a_contradiction_is_refused_before_any_work(fields, said):
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe(fields)
    assert "\n" not in str(error.value)


def test_power_of_two_methods_go_with_power_of_two_scales():
    for method in (NonOverflow(), MinMSE()):
        assert Recipe(ranges=method, scales="power-of-two").ranges == method


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


def test_replace_knows_its_fields():
    with pytest.raises(RecipeError, match=r"unknown option 'per_chanel'\. Did you mean"):
        Recipe().replace(per_chanel=True)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"per_channel": "yes"}, "option 'per_channel' must be True or False, not 'yes'"),
        ({"mode": "statik"}, "option 'mode' cannot be 'statik'. Known: static"),
        ({"ranges": "minmax"}, "option 'ranges' must be a mapping"),
        ({"weight": "int9"}, "Did you mean 'int8'"),
        ({"select": {"exclude": "conv1"}}, "option 'select.exclude' must be a list"),
        ({"limits": True}, "option 'limits' must be a mapping or None, not True"),
        ({"fine_tune": {"iterations": 20}}, "option 'fine_tune' needs 'method'"),
        ({"name": object()}, "option 'name': a value of type object has no place here"),
    ],
)
def test_fields_of_a_wrong_type_are_refused_in_python_as_in_a_file(fields, sentence):
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        Recipe(**fields)


def test_python_takes_what_a_file_may_hold():
    given = Recipe(
        weight="int16", block_size=np.int64(0), select={"exclude": ["a"]}, output_ranges={}
    )
    assert given == Recipe(weight=INT16, select=Selection(exclude=("a",)))
    assert Recipe(select=Selection(exclude=["a"])).select.exclude == ("a",)


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
    [("xint8", "npu-cnn"), ("int8-symmetric", "npu-transformer"), ("int8-dynamic", "cpu")],
)
def test_a_recipe_that_its_target_can_run_stays_as_it_is(recipe, target):
    assert load_recipe(recipe, target) == load_recipe(recipe)
