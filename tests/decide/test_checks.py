"""Recipes that name what a model does not have."""

import pytest

from bitwright.decide.checks import check_tensor_names
from bitwright.errors import RecipeError
from bitwright.recipe import Override, Recipe


def test_an_override_of_no_tensor_is_refused_with_a_hint():
    recipe = Recipe(overrides={"lsat": Override(symmetric=True)})
    with pytest.raises(RecipeError, match=r"no tensor is called 'lsat'. Did you mean 'last'\?"):
        check_tensor_names(recipe, {"last"})
