"""Hardware is data: targets are found by name, and each describes one that its own recipe fits."""

import json
from pathlib import Path

import pytest

import bitwright
from bitwright import load_recipe
from bitwright.errors import TargetError
from bitwright.recipe import LimitDetails, Recipe, named_recipe
from bitwright.recipe.host import with_standard_purpose
from bitwright.targets import NPU_CNN, TARGETS, find_target

MOVED = json.loads((Path(__file__).parent / "moved_targets.json").read_text())
"""What was asked for and planned on the demo model when targets were Python."""


@pytest.mark.parametrize("name", MOVED)
def test_a_target_takes_its_own_recipe(name):
    assert load_recipe(find_target(name).recipe, name) == named_recipe(TARGETS[name].recipe)


@pytest.mark.parametrize("name", MOVED)
def test_the_recipe_of_a_target_asks_for_what_the_target_has(name):
    target = find_target(name)
    recipe = named_recipe(target.recipe)
    assert target.types is None or {recipe.activation, recipe.weight} <= {*target.types}
    assert (recipe.scales == "power-of-two") == target.power_of_two
    assert not (target.per_tensor and recipe.per_channel)
    assert target.op_types is None or recipe.select.op_types == target.op_types


def test_an_unknown_target_is_refused_with_the_nearest_ones():
    with pytest.raises(TargetError, match="Did you mean 'npu-cnn' or 'npu-transformer'"):
        find_target("npu")


def test_every_limit_has_its_switch_in_a_recipe():
    assert {rule.name for rule in NPU_CNN.limits} == {*LimitDetails.__struct_fields__} - {
        "max_rounds"
    }


def merged(now, before):
    """Return what is there now with all that was there before; options that are new stay."""
    if not isinstance(now, dict) or not isinstance(before, dict):
        return before
    return now | {key: merged(now.get(key), value) for key, value in before.items()}


@pytest.mark.parametrize("name", MOVED)
def test_targets_that_were_python_ask_for_what_they_did_before(name):
    recipe = load_recipe(None, name)
    before = MOVED[name]["recipe"]
    assert Recipe.from_mapping(merged(json.loads(recipe.to_json()), before)) == recipe


def test_the_npu_plans_what_it_did_before_its_limits_were_data():
    demo = bitwright.load_demo()
    recipe = load_recipe(None, "npu-cnn")
    plan = bitwright.make_plan(demo.model_path, data=demo.calibration[:16], recipe=recipe)
    tensors = {
        key: [entry.qtype.name, entry.scale, entry.zero_point, entry.same_as]
        for key, entry in plan.tensors.items()
    }
    assert tensors == MOVED["npu-cnn"]["tensors"]
    actions = {name: node.action for name, node in plan.nodes.items()}
    assert actions == MOVED["npu-cnn"]["actions"]


@pytest.mark.parametrize(
    ("name", "cpu"),
    [("web", "wasm-simd"), ("wasm", "wasm-simd"), ("mobile", "arm-dot"), ("cpu-any", "x86-avx2")],
)
def test_targets_that_people_name_are_placed_by_the_costs_of_their_cpus(name, cpu):
    recipe = with_standard_purpose(Recipe(), name)
    assert (recipe.place.purpose, recipe.place.cpu) == ("balanced", cpu)
