"""Recipes that name what a model does not have."""

import onnx_ir as ir
import pytest
from support.models import make_mlp

from bitwright.decide.checks import check_recipe, check_tensor_names
from bitwright.errors import RecipeError
from bitwright.graph import iter_values
from bitwright.numerics.types import UINT16
from bitwright.recipe import Override, Recipe


def test_an_override_of_no_tensor_is_refused_with_a_hint():
    recipe = Recipe(overrides={"lsat": Override(symmetric=True)})
    with pytest.raises(RecipeError, match=r"no tensor is called 'lsat'. Did you mean 'last'\?"):
        check_tensor_names(recipe, {"last"})


def test_a_constant_is_not_converted_for_some_readers():
    model = ir.from_proto(make_mlp())
    names = {value: name for name, value in iter_values(model)}
    weight = next(name for value, name in names.items() if value.is_initializer())
    recipe = Recipe(overrides={weight: Override(convert=Override(qtype=UINT16))})
    with pytest.raises(RecipeError, match="it is a constant; give a constant the type it needs"):
        check_recipe(recipe, names)
