"""What only another tool's behaviour needs stands in one place."""

import copy
import json

from bitwright import load_recipe
from bitwright.recipe import Emulation, Recipe, named_recipe


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
