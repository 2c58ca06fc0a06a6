"""Recipes are the same value in Python, JSON and a dict."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright import load_recipe
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT4, INT8, INT16, UINT8, UINT16
from bitwright.recipe import (
    MSE,
    Distribution,
    Emulation,
    Entropy,
    LayerwisePercentile,
    MeanExtremes,
    MinMax,
    Override,
    Percentile,
    Recipe,
    Selection,
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
    st.builds(MeanExtremes, symmetric=st.booleans()),
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
    emulate=st.builds(
        Emulation,
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


def test_a_recipe_is_frozen():
    with pytest.raises(AttributeError):
        Recipe().per_channel = True


def test_a_default_recipe_is_not_changed_by_what_is_made_of_it():
    changed = Recipe().replace(emulate=Emulation(channel_axes={"Conv": 0}))
    assert changed.emulate.channel_axes == {"Conv": 0}
    assert Recipe().emulate.channel_axes == {}


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


def test_replace_knows_its_fields():
    with pytest.raises(RecipeError, match=r"unknown option 'per_chanel'\. Did you mean"):
        Recipe().replace(per_chanel=True)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"per_channel": "yes"}, "option 'per_channel' must be True or False, not 'yes'"),
        ({"mode": "statik"}, "option 'mode' cannot be 'statik'. Did you mean 'static'?"),
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
