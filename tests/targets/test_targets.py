"""Hardware is data: targets are found by name, and each describes one that its own recipe fits."""

import pytest

from bitwright.errors import TargetError
from bitwright.recipe import Limits, load_recipe, named_recipe
from bitwright.targets import TARGETS, find_target
from bitwright.targets.npu_limits import LIMIT_RULES


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_own_recipe(name):
    assert load_recipe(find_target(name).recipe, name) == named_recipe(TARGETS[name].recipe)


@pytest.mark.parametrize("name", TARGETS)
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
    assert {rule.name for rule in LIMIT_RULES} == {*Limits.__struct_fields__} - {"max_rounds"}
