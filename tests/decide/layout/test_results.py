"""Class scores and other results that leave the model as integers are never clipped."""

from __future__ import annotations

import numpy as np
import pytest
from support.layouts import layout_of
from support.models import INT64, build, info, node, normal, quality, weight

import bitwright
from bitwright import MSE, Entropy, MeanExtremes, MinMax, Override, Percentile, Placement, Recipe

TAILS = {
    "leaves": [],
    "moved": [node("Flatten", ["s"], ["y"])],
    "averaged": [node("GlobalAveragePool", ["s"], ["g"]), node("Flatten", ["g"], ["y"])],
    "compared": [node("Softmax", ["s"], ["p"], axis=1), node("ArgMax", ["p"], ["y"], axis=1)],
    "scaled": [node("Mul", ["s", "half"], ["y"])],
    "beside others": [node("Concat", ["s", "h"], ["y"], axis=1)],
}
METHODS = [MSE(), Entropy(guarded=False), MeanExtremes(), Percentile(percentile=99)]
BEHIND = {
    "multiplied": [node("Conv", ["s", "u"], ["c"]), node("Relu", ["c"], ["y"])],
    "gated": [
        node("Sigmoid", ["x0"], ["g"]),
        node("Mul", ["s", "g"], ["m"]),
        node("Conv", ["m", "u"], ["y"]),
    ],
}


def make_head(tail):
    """Two convolutions, the second of which gives scores; one place in a thousand stands out."""
    constants = {
        "w": weight(8, 4, 1, 1, seed=1),
        "v": weight(5, 8, 1, 1, seed=2),
        "u": weight(3, 5, 1, 1, seed=3),
        "half": np.float32(0.5),
        "first": np.int64([0]),
    }
    nodes = [
        node("Conv", ["x", "w"], ["h"], name="body"),
        node("Conv", ["h", "v"], ["s" if tail else "y"], name="scores"),
        *([node("Gather", ["x", "first"], ["x0"], axis=1)] if "x0" in str(tail) else []),
        *tail,
    ]
    indices = bool(tail) and tail[-1].op_type == "ArgMax"
    result = info("y", dtype=INT64) if indices else info("y")
    return build(nodes, [info("x", [1, 4, 32, 32])], [result], constants)


def make_scenes(count):
    scenes = [{"x": normal(1, 4, 32, 32, seed=seed)} for seed in range(count)]
    for scene in scenes:
        scene["x"][0, :, 7, 7] *= 8
    return scenes


@pytest.mark.parametrize("tail", TAILS)
def test_what_leaves_the_model_is_marked_at_the_product_that_writes_it(tail):
    layout = layout_of(make_head(TAILS[tail]))
    key = layout.root(layout.nodes["scores"].outputs[0])
    assert layout.entries[key].leaves_model
    assert layout.entries["h"].leaves_model == (tail == "beside others")


@pytest.mark.parametrize("tail", BEHIND)
def test_what_is_multiplied_again_is_not(tail):
    layout = layout_of(make_head(BEHIND[tail]))
    assert not layout.entries["s"].leaves_model


def test_what_a_float_node_writes_is_not_as_its_floats_leave():
    constants = {"scale": np.ones(16, np.float32), "w": weight(16, 4)}
    nodes = [
        node("LayerNormalization", ["x", "scale"], ["n"], axis=-1),
        node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    layout = layout_of(build(nodes, {"x": [4, 16]}, {"n": [4, 16], "y": [4, 4]}, constants))
    assert layout.outputs == {"n": None, "y": None}
    assert not layout.entries["n"].leaves_model


@pytest.mark.parametrize("method", METHODS)
def test_whatever_the_method_scores_have_the_whole_range_and_the_rest_what_is_asked(method):
    model, scenes = make_head(TAILS["moved"]), make_scenes(8)
    found = bitwright.make_plan(model, data=scenes, recipe=Recipe(ranges=method))
    whole = bitwright.make_plan(model, data=scenes, recipe=Recipe(ranges=MinMax()))
    assert found.tensors["s"] == whole.tensors["s"]
    assert found.tensors["h"].range != whole.tensors["h"].range


def test_an_override_and_placement_for_other_hardware_clip_as_asked():
    model, scenes = make_head([]), make_scenes(8)
    method = Percentile(percentile=99)
    asked = Recipe(ranges=method, overrides={"y": Override(ranges=method)})
    elsewhere = Recipe(ranges=method, place=Placement(isolated=True))
    for recipe in (asked, elsewhere):
        plan = bitwright.make_plan(model, data=scenes, recipe=recipe)
        assert plan.tensors["y"].method == "percentile"


def test_the_largest_scores_stay_apart():
    model, scenes = make_head([]), make_scenes(8)
    inner = dict.fromkeys("xh", Override(ranges=MinMax()))
    recipe = Recipe(ranges=Percentile(percentile=99.9), overrides=inner)
    clipped = recipe.replace(overrides={**inner, "y": Override(ranges=recipe.ranges)})
    results = [bitwright.quantize(model, data=scenes, recipe=one) for one in (recipe, clipped)]
    whole, cut = (quality(model, result.model, scenes) for result in results)
    assert whole > cut + 4
