"""Which changes are proposed for which recipe and model."""

import numpy as np
import pytest
from support.equalization_models import make_mobilenet
from support.models import build, make_cnn, node, weight

from bitwright import load_recipe
from bitwright.jobs.improve.proposals.bias_correction import gain_corrections
from bitwright.jobs.improve.proposals.equalization import equalizations
from bitwright.jobs.improve.proposals.ranges import activation_ranges, roundings, weight_ranges
from bitwright.jobs.opening import open_model
from bitwright.recipe import MSE, CrossLayerEqualization, MeanExtremes, MinMSE, Percentile


def proposed(model, recipe, kind):
    recipe = load_recipe(recipe)
    return list(kind(recipe, open_model(model, recipe)))


def make_norm():
    nodes = [
        node("LayerNormalization", ["x", "gain", "shift"], ["n"]),
        node("MatMul", ["n", "w"], ["y"]),
    ]
    ones = np.ones(8, np.float32)
    constants = {"gain": ones, "shift": 0 * ones, "w": weight(8, 8)}
    return build(nodes, {"x": [1, 4, 8]}, {"y": [1, 4, 8]}, constants)


def test_weights_with_one_scale_are_equalized_and_clipped():
    [equalized] = proposed(make_mobilenet(), "int8", equalizations)
    assert isinstance(equalized.fields["equalize"], CrossLayerEqualization)
    [clipped] = proposed(make_mobilenet(), "int8", weight_ranges)
    assert clipped.fields == {"weight_ranges": MSE()}


def test_channels_of_8_bits_need_neither():
    assert not proposed(make_mobilenet(), "int8-per-channel", equalizations)
    assert not proposed(make_mobilenet(), "int8-per-channel", weight_ranges)


def test_three_range_methods_are_chosen_between_and_a_named_one_stays():
    recipe = load_recipe("int8-per-channel")
    assert [change.fields for change in activation_ranges(recipe)] == [
        {"ranges": MSE()},
        {"ranges": MeanExtremes()},
        {},
    ]
    for named in (recipe.replace(ranges=Percentile()), load_recipe("a16w8")):
        [change] = activation_ranges(named)
        assert change.fields == {}


def test_power_of_two_scales_get_the_method_for_them():
    [change] = activation_ranges(load_recipe("int8").replace(scales="power-of-two"))
    assert isinstance(change.fields["ranges"], MinMSE)


def test_a_product_behind_a_norm_is_smoothed():
    found = proposed(make_norm(), "int8-per-channel", equalizations)
    assert [change.name for change in found] == ["SmoothQuant"]


@pytest.mark.parametrize(
    ("base", "given", "count"),
    [
        ("int8", "sequential", 0),
        ("int8-per-channel", "sequential", 1),
        ("int8-per-channel", "fast", 0),
    ],
)
def test_gains_are_corrected_beside_biases_where_channels_have_scales(base, given, count):
    recipe = load_recipe(base).replace(bias_correction=given)
    assert len(proposed(make_cnn(), recipe, gain_corrections)) == count


@pytest.mark.parametrize(("recipe", "count"), [("a8w4", 1), ("int8-per-channel", 0)])
def test_low_bit_weights_are_rounded_by_second_moments(recipe, count):
    recipe = load_recipe(recipe).replace(rounding="nearest")
    assert len(proposed(make_cnn(), recipe, roundings)) == count
