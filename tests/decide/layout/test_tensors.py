"""Blocks lie along the axis that their first reader sums up."""

from __future__ import annotations

import numpy as np
import pytest
from support.layouts import layout_of
from support.models import build, make_cnn, make_samples, node, normal, weight

import bitwright
from bitwright import load_recipe
from bitwright.numerics.types import BFP16, UINT8
from bitwright.recipe import Override, Placement, Recipe, Selection


def axes_of(model, **fields):
    recipe = Recipe(format="extended", activation=BFP16, weight=BFP16, **fields)
    plan = bitwright.make_plan(model, recipe=recipe)
    return {key: entry.axis for key, entry in plan.tensors.items()}


def test_convolutions_sum_over_channels_and_biases_have_one_axis():
    axes = axes_of(make_cnn())
    assert axes["x"] == axes["w1"] == axes["r1"] == 1
    assert axes["b1"] == 0
    assert axes["f"] == 1 and axes["w3"] == 0  # a Gemm of [n, k] and [k, m]


@pytest.mark.parametrize(("given", "expected"), [({}, 2), ({"axis": 1}, 1), ({"axis": -3}, 0)])
def test_a_softmax_has_its_own_axis(given, expected):
    model = build(
        [node("Softmax", ["x"], ["y"], name="softmax", **given)],
        {"x": [2, 3, 4]},
        {"y": [2, 3, 4]},
    )
    axes = axes_of(model, select=Selection(op_types=("Softmax",)), place=Placement(isolated=True))
    assert axes["x"] == expected


def test_the_first_reader_decides_and_an_override_before_it():
    model = build(
        [
            node("MatMul", ["x", "w"], ["a"], name="first"),
            node("MatMul", ["v", "x"], ["b"], name="second"),
        ],
        {"x": [6, 6], "v": [6, 6]},
        {"a": [6, 6], "b": [6, 6]},
        {"w": weight(6, 6)},
    )
    assert axes_of(model)["x"] == 1
    assert axes_of(model, overrides={"x": Override(axis=0)})["x"] == 0


def test_values_that_are_moved_lie_in_new_blocks():
    model = build(
        [
            node("MatMul", ["x", "w"], ["a"], name="product"),
            node("Transpose", ["a"], ["t"], name="turn", perm=[1, 0]),
            node("MatMul", ["t", "w2"], ["y"], name="next"),
        ],
        {"x": [8, 6]},
        {"y": [6, 4]},
        {"w": weight(6, 6), "w2": weight(8, 4)},
    )
    recipe = Recipe(format="extended", activation=BFP16, weight=BFP16)
    plan = bitwright.make_plan(model, recipe=recipe)
    assert plan.tensors["t"].same_as is None and plan.tensors["t"].axis == 1
    assert np.ndim(plan.tensors["t"].scale) == 0


@pytest.mark.parametrize("recipe", ["a16w8", "int16-cnn-default"])
def test_a_constant_that_is_both_weight_and_bias_of_a_node_has_an_entry_for_each(recipe):
    """Exporters store equal tensors once: a norm's fresh scale and bias may be the same zeros."""
    model = build(
        [
            node("Conv", ["x", "w1", "z"], ["c"], name="first"),
            node("Relu", ["c"], ["r"], name="relu"),
            node("BatchNormalization", ["r", "z", "z", "m", "v"], ["y"], name="norm"),
            node("Conv", ["y", "w"], ["out"], name="conv"),
        ],
        {"x": [1, 4, 6, 6]},
        {"out": None, "r": None},
        {
            "z": normal(4, seed=1),
            "m": np.zeros(4, np.float32),
            "v": np.ones(4, np.float32),
            "w1": weight(4, 4, 1, 1),
            "w": weight(3, 4, 1, 1),
        },
    )
    options = load_recipe(recipe).replace(optimize=False)
    result = bitwright.quantize(model, recipe=options, data=make_samples(model), progress=False)
    assert result.plan.nodes["norm"].action == "quantize"
    assert result.outputs[0].sqnr > 25


def test_a_weight_in_blocks_behind_integers_has_the_axis_that_is_summed_over():
    nodes = [node("MatMul", ["x", "w"], ["y"], "product")]
    model = build(nodes, {"x": [3, 16]}, {"y": None}, {"w": normal(16, 4)})
    layout = layout_of(model, format="extended", activation=UINT8, weight=BFP16)
    assert layout.entries["w"].axis == 0 and layout.entries["x"].axis is None
