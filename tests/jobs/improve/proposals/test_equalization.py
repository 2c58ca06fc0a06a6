"""Which changes are proposed for which recipe and model."""

import numpy as np
import pytest
from support.equalization_models import make_mobilenet
from support.models import build, make_cnn, node, weight

from bitwright import load_recipe
from bitwright.jobs.improve.effort import BIAS_CORRECTION, FAMILY, ROUNDING
from bitwright.jobs.opening import open_model
from bitwright.recipe import MSE, CrossLayerEqualization, MinMSE


def proposed(model, recipe, steps=FAMILY):
    recipe = load_recipe(recipe)
    prepared = open_model(model, recipe)
    return {name: list(step(recipe, prepared)) for name, step in steps.items()}


def make_norm():
    nodes = [
        node("LayerNormalization", ["x", "gain", "shift"], ["n"]),
        node("MatMul", ["n", "w"], ["y"]),
    ]
    ones = np.ones(8, np.float32)
    constants = {"gain": ones, "shift": 0 * ones, "w": weight(8, 8)}
    return build(nodes, {"x": [1, 4, 8]}, {"y": [1, 4, 8]}, constants)


def test_weights_with_one_scale_are_equalized_and_clipped():
    found = proposed(make_mobilenet(), "int8")
    [equalized] = found["equalization"]
    assert isinstance(equalized.fields["equalize"], CrossLayerEqualization)
    assert found["ranges of weights"][0].fields == {"weight_ranges": MSE()}


def test_channels_of_8_bits_need_neither():
    found = proposed(make_mobilenet(), "int8-per-channel")
    assert not found["equalization"]
    assert not found["ranges of weights"]
    assert found["ranges of activations"]


def test_power_of_two_scales_get_the_method_for_them():
    recipe = load_recipe("int8").replace(scales="power-of-two")
    found = proposed(make_cnn(), recipe)
    assert isinstance(found["ranges of activations"][0].fields["ranges"], MinMSE)


def test_a_product_behind_a_norm_is_smoothed():
    found = proposed(make_norm(), "int8-per-channel")
    assert [change.name for change in found["equalization"]] == ["SmoothQuant"]


@pytest.mark.parametrize(
    ("base", "given", "count"),
    [("int8", "off", 1), ("int8-per-channel", "off", 1), ("int8", "fast", 0)],
)
def test_biases_are_corrected_where_the_recipe_does_not(base, given, count):
    recipe = load_recipe(base).replace(bias_correction=given)
    found = proposed(make_cnn(), recipe, BIAS_CORRECTION)
    assert len(found["bias correction"]) == count
    gains = [change.fields.get("gain_correction", False) for change in found["bias correction"]]
    assert any(gains) == (base == "int8-per-channel")


@pytest.mark.parametrize(("recipe", "count"), [("a8w4", 1), ("int8-per-channel", 0)])
def test_low_bit_weights_are_rounded_by_second_moments(recipe, count):
    assert len(proposed(make_cnn(), recipe, ROUNDING)["rounding"]) == count
