import json

import pytest

import bitwright


def test_every_recipe_and_target_is_listed(run):
    answer = run("recipes")
    for name in (*bitwright.RECIPES, *bitwright.TARGETS):
        assert name in answer.out
    listed = run("recipes", "--json").json
    assert [recipe["name"] for recipe in listed["recipes"]] == list(bitwright.RECIPES)
    assert [target["name"] for target in listed["targets"]] == list(bitwright.TARGETS)


def test_three_recipes_to_start_from_stand_above_those_by_purpose(run):
    titles = [line for line in run("recipes").out.splitlines() if not line.startswith(" ")]
    assert titles[:3] == [
        "Start from one of these",
        "Integer weights and activations",
        "Weights only, for language models",
    ]
    listed = run("recipes", "--json").json
    assert len(listed["start"]) == 3
    assert set(listed["start"]) < set(bitwright.RECIPES)
    purposes = {recipe["name"]: recipe["purpose"] for recipe in listed["recipes"]}
    assert purposes["int4-awq"] == titles[2]
    assert purposes["npu-cnn"] == "For the hardware of a target"
    assert purposes["xint8"] == "By the names of AMD's tools"


@pytest.mark.parametrize("name", bitwright.RECIPES)
@pytest.mark.sampled(12)
def test_a_printed_recipe_is_the_recipe(run, name):
    answer = run("recipes", name)
    assert bitwright.Recipe.from_json(answer.out) == bitwright.RECIPES[name]
    assert json.loads(answer.out)["name"] == name


def test_an_unknown_recipe_gets_a_suggestion(run):
    answer = run("recipes", "int9")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "error: unknown recipe 'int9'. Did you mean 'int8'?\n"
