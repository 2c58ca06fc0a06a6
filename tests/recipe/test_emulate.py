"""What only another tool's behaviour needs stands in one place, and is read from where it stood."""

import copy
import json

import pytest

from bitwright import load_recipe
from bitwright.errors import RecipeError
from bitwright.plan import QuantPlan
from bitwright.recipe import AdaRound, Emulation, Placement, Recipe, named_recipe
from bitwright.recipe.emulate import MOVED, moved_from, with_new_places


def value_at(recipe, path):
    for name in path.split("."):
        recipe = getattr(recipe, name)
    return recipe


# Another value than the default one, for each kind of default.
OTHER = {
    "emulate.conventions": "onnxruntime",
    "emulate.assumed_type": "float16",
    "emulate.vendor_names": "quark",
    "emulate.block_rounding": "half-even",
    "emulate.channel_axes": {"Conv": 0},
    "emulate.fuse_pairs": [["Mul", "Add"]],
    "place.unquantized_outputs": ["Add"],
    "emulate.unquantized_nodes": ["add"],
    "emulate.fine_tune.op_types": ["Conv"],
    "emulate.fine_tune.beta": [3.0, 2.0],
    "emulate.fine_tune.learning_rate_above": [1.0, 2.0],
    "emulate.fine_tune.samples": 3,
    "emulate.fine_tune.patience": 3,
}


def other_value(path):
    default = value_at(Recipe(), path)
    if path in OTHER:
        return OTHER[path]
    return (
        (not default)
        if isinstance(default, bool)
        else default / 2
        if default != int(default)
        else int(default) // 2
    )


@pytest.mark.parametrize("old", MOVED)
def test_an_old_file_has_its_field_at_the_new_place(old):
    new, value = MOVED[old], other_value(MOVED[old])
    *section, name = old.split(".")
    data = {"format": "extended", "weight": "bfp16", "activation": "bfp16"}
    fields = {name: value}
    if section == ["fine_tune"]:
        fields["method"] = "adaround"
    if section == ["limits"]:
        data["scales"] = "power-of-two"
    if old != "place.block_rounding":
        data = {key: data[key] for key in data if key == "scales"}
    data |= {section[0]: fields} if section else fields
    found = value_at(load_recipe(data), new)
    assert json.loads(json.dumps(found)) == value != value_at(Recipe(), new)


def test_a_section_that_only_had_a_switch_is_still_asked_for():
    found = load_recipe({"scales": "power-of-two", "limits": {"shift_cut": False}})
    assert found.limits is not None and not found.emulate.limits.shift_cut


def test_a_stored_plan_is_read_with_the_fields_of_its_recipe_where_they_stood():
    recipe = json.loads(named_recipe("int8").to_json())
    del recipe["emulate"]
    recipe["place"]["weight_pairs"] = True
    text = json.dumps({"fingerprint": "", "recipe": recipe, "tensors": {}, "nodes": {}})
    assert QuantPlan.from_json(text).recipe.emulate == Emulation(weight_pairs=True)


def test_what_was_moved_is_named_where_it_is_asked_for_in_python():
    with pytest.raises(
        RecipeError, match=r"'weight_pairs' is called 'emulate\.weight_pairs' today"
    ):
        Placement(weight_pairs=True)
    with pytest.raises(RecipeError, match=r"'place\.weight_pairs' is called 'emulate\.weight_pai"):
        Recipe().replace(place={"weight_pairs": True})
    with pytest.raises(RecipeError, match=r"'seed' is called 'emulate\.fine_tune\.seed' today"):
        AdaRound(seed=1)


def test_a_native_recipe_has_nothing_in_it():
    for name in ("int8-per-channel", "int8-dynamic", "int4", "a16w8", "npu-cnn", "float16"):
        assert named_recipe(name).emulate.weight_pairs is False
    assert all(
        named_recipe(n).emulate == Emulation() for n in ("int8", "a16w8", "int4", "bfloat16")
    )


def test_json_shows_only_what_is_other_than_usual():
    shown = [
        json.loads(recipe.to_json())["emulate"]
        for recipe in (
            Recipe(),
            load_recipe({"emulate": {"limits": {}, "vendor_names": "vitis-ai"}}),
            copy.deepcopy(Recipe(emulate={"fine_tune": {"beta": [20.0, 2.0]}})),
            Recipe(emulate={"limits": {"shift_cut": False}}),
        )
    ]
    assert shown == [{}, {}, {}, {"limits": {"shift_cut": False}}]


def test_every_old_name_leads_to_a_field():
    for new in MOVED.values():
        value_at(Recipe(), new)
    assert moved_from("select") == {}
    assert with_new_places({"per_channel": True}) == {"per_channel": True}
