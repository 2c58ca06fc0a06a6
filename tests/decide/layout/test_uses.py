"""Sums that only float nodes read stay float, whatever form an exporter gives their inputs."""

from __future__ import annotations

import numpy as np
import pytest
from support.layouts import layout_of
from support.models import INT64, build, info, make_samples, node, normal, quality, weight
from support.qat_models import fused_ops

import bitwright
from bitwright import MSE, Entropy, MeanExtremes, MinMax, Override, Percentile, Placement, Recipe
from bitwright.decide.layout.uses import find_unread_nodes
from bitwright.numerics.types import UINT16
from bitwright.recipe import Selection

LAYERS = 6
SUMS = [f"sum{i}" for i in range(LAYERS + 1)]


def make_residual_path(*, expanded=False):
    """A class token before patches, then sums along a path that normalizations read.

    torch's TorchScript exporter writes the token with an Expand of a computed shape, its dynamo
    exporter as a constant.
    """
    constants = {"token": normal(1, 1, 16, seed=1), "places": normal(1, 9, 16, seed=2)}
    nodes = [node("MatMul", ["x", "w"], ["patches"], name="patches")]
    constants["w"] = weight(16, 16, seed=3)
    if expanded:
        constants |= {"begin": np.int64([0]), "end": np.int64([1]), "rest": np.int64([1, 16])}
        nodes += [
            node("Shape", ["x"], ["shape"]),
            node("Slice", ["shape", "begin", "end"], ["count"]),
            node("Concat", ["count", "rest"], ["wanted"], axis=0),
            node("Expand", ["token", "wanted"], ["tokens"]),
        ]
    tokens = "tokens" if expanded else "token"
    nodes += [
        node("Concat", [tokens, "patches"], ["sequence"], name="join", axis=1),
        node("Add", ["sequence", "places"], ["s0"], name="sum0"),
    ]
    for i in range(LAYERS):
        constants |= {f"w{i}": weight(16, 16, seed=i), f"g{i}": normal(16, seed=i)}
        nodes += [
            node("LayerNormalization", [f"s{i}", f"g{i}"], [f"n{i}"], name=f"norm{i}", axis=-1),
            node("MatMul", [f"n{i}", f"w{i}"], [f"b{i}"], name=f"branch{i}"),
            node("Add", [f"b{i}", f"s{i}"], [f"s{i + 1}"], name=f"sum{i + 1}"),
        ]
    nodes.append(node("LayerNormalization", [f"s{LAYERS}", "g0"], ["y"], name="norm", axis=-1))
    batch = "n" if expanded else 1
    return build(nodes, {"x": [batch, 8, 16]}, {"y": [batch, 9, 16]}, constants)


def make_shared_sum(reader):
    """Two convolutions whose sum another node reads."""
    constants = {"w": weight(4, 4, 1, 1), "v": weight(4, 4, 1, 1, seed=1)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="left"),
        node("Conv", ["x", "v"], ["b"], name="right"),
        node("Add", ["a", "b"], ["s"], name="sum"),
        reader,
    ]
    shape = [1, 4, 3, 3]
    return build(nodes, {"x": shape}, {"y": shape}, constants)


@pytest.mark.parametrize("expanded", [False, True], ids=["constant", "expanded"])
def test_sums_that_only_normalizations_read_stay_float(expanded):
    layout = layout_of(make_residual_path(expanded=expanded))
    assert all(layout.nodes[name].action == "float" for name in ("join", *SUMS))
    assert all(layout.nodes[f"branch{i}"].action == "quantize" for i in range(LAYERS))
    assert all(layout.nodes[f"branch{i}"].outputs == (None,) for i in range(LAYERS))
    reason = "an input of it is float" if expanded else "its result is only read in float"
    assert layout.nodes["join"].reason.startswith(reason)


def test_both_forms_of_a_class_token_have_the_same_error():
    errors = []
    for expanded in (False, True):
        model = make_residual_path(expanded=expanded)
        samples = [{"x": normal(1, 8, 16, seed=seed)} for seed in range(16)]
        quantized = bitwright.quantize(model, data=samples, purpose="size").model
        errors.append(quality(model, quantized, samples))
    assert abs(errors[0] - errors[1]) < 0.5


def test_float_sums_are_closer_to_float_than_rounded_ones():
    model = make_residual_path()
    samples = make_samples(model, 16)
    rounded = Recipe(overrides={"s6": Override(qtype=Recipe().activation)})  # so it counts as read
    plain, forced = (
        quality(model, bitwright.quantize(model, recipe=recipe, data=samples).model, samples)
        for recipe in (Recipe(), rounded)
    )
    assert plain > forced + 3


def test_a_sum_that_a_product_reads_is_quantized():
    nodes = layout_of(make_shared_sum(node("Conv", ["s", "w"], ["y"], name="next"))).nodes
    assert nodes["sum"].quantized
    # ... also where other nodes that keep to integers come in between.
    relu = make_shared_sum(node("Relu", ["s"], ["r"], name="relu"))
    relu.graph.node.append(node("Conv", ["r", "w"], ["y"], name="next"))
    assert layout_of(relu).nodes["sum"].quantized


@pytest.mark.parametrize(
    "fields",
    [
        {"overrides": {"s": Override(qtype=UINT16)}},
        {"select": Selection(output_nodes=("sum",))},
        {"place": Placement(isolated=True)},
    ],
    ids=["override", "end", "isolated"],
)
def test_a_sum_that_somebody_wants_is_quantized(fields):
    model = make_shared_sum(node("Erf", ["s"], ["y"], name="erf"))
    assert "only read in float" in layout_of(model).nodes["sum"].reason
    assert layout_of(model, **fields).nodes["sum"].quantized


def make_attention(*, mask=None):
    """Scores and what they weight; dynamo's exporter adds a mask of zeros where there is none."""
    nodes = [
        node("MatMul", ["x", "w"], ["q"], name="query"),
        node("Transpose", ["x"], ["k"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["s"], name="scores"),
        node("Softmax", ["s" if mask is None else "m"], ["p"], name="softmax", axis=-1),
        node("MatMul", ["p", "x"], ["y"], name="context"),
    ]
    constants = {"w": weight(16, 16)}
    if mask is not None:
        constants["mask"] = mask
        nodes.insert(3, node("Add", ["s", "mask"], ["m"], name="masking"))
    return build(nodes, {"x": [1, 8, 16]}, {"y": [1, 8, 16]}, constants)


def test_a_softmax_reads_the_scores_of_an_integer_product_in_float_with_a_mask_and_without(
    tmp_path,
):
    plain = make_attention()
    masked = make_attention(mask=np.zeros((1, 8, 8), np.float32))
    samples = [{"x": normal(1, 8, 16, seed=seed)} for seed in range(8)]
    both = {"base": "int8-per-channel", "select": {"constant_weights_only": False}}
    results = [bitwright.quantize(model, data=samples, recipe=both) for model in (plain, masked)]
    for result in results:
        assert result.plan.nodes["scores"].quantized
        assert result.plan.nodes["scores"].outputs == (None,)
        assert "integer Softmax is slower" in result.plan.nodes["softmax"].reason
        kernels = fused_ops(result.model, tmp_path)
        assert (kernels["MatMulIntegerToFloat"], kernels["QLinearMatMul"]) == (2, 1)
    errors = [quality(plain, result.model, samples) for result in results]
    assert errors[0] == pytest.approx(errors[1], abs=0.01)
    rounded = Recipe(select=Selection(op_types=("MatMul", "Transpose", "Softmax")))
    integer = bitwright.quantize(plain, recipe=rounded, data=samples).model
    assert fused_ops(integer, tmp_path)["QLinearSoftmax"] == 1
    assert errors[0] > quality(plain, integer, samples)
    default = bitwright.quantize(plain, data=samples).model
    assert quality(plain, default, samples) > errors[0]  # scores and what they weight in float


def test_a_product_writes_integers_where_they_are_multiplied_and_floats_elsewhere():
    def outputs(*readers):
        nodes = [node("Gemm", ["x", "w"], ["h"], name="product"), *readers]
        model = build(nodes, {"x": [4, 16]}, {"y": None}, {"w": weight(16, 16)})
        return layout_of(model).nodes["product"].outputs

    assert outputs(node("Gemm", ["h", "w"], ["y"])) == ("h",)
    moved = node("Transpose", ["h"], ["t"])
    assert outputs(moved, node("Gemm", ["t", "w"], ["y"], transA=1)) == ("h",)
    assert outputs(moved, node("Erf", ["t"], ["y"])) == (None,)
    assert outputs(node("Transpose", ["h"], ["y"])) == (None,)
    assert outputs(node("Erf", ["h"], ["y"])) == (None,)
    both = [node("Gemm", ["h", "w"], ["g"]), node("Erf", ["h"], ["e"])]
    assert outputs(*both, node("Add", ["g", "e"], ["y"])) == ("h",)


@pytest.mark.parametrize(
    ("last", "kernel"),
    [
        (node("Gemm", ["x", "w", "b"], ["y"], name="product"), "QGemm"),
        (node("MatMul", ["x", "w"], ["y"], name="product"), "MatMulIntegerToFloat"),
    ],
)
def test_what_leaves_the_model_is_not_rounded_and_still_computed_in_integers(
    tmp_path, last, kernel
):
    constants = {"w": weight(16, 4), "b": normal(4, seed=3)}
    model = build([last], {"x": [8, 16]}, {"y": [8, 4]}, constants)
    samples = [{"x": normal(8, 16, seed=seed)} for seed in range(8)]
    result = bitwright.quantize(model, data=samples, purpose="size")
    assert result.plan.outputs == {"y": None}
    assert fused_ops(result.model, tmp_path)[kernel] == 1
    rounded = Recipe(place=Placement(isolated=True, float_bias_add=False))
    integer = bitwright.quantize(model, recipe=rounded, data=samples)
    assert quality(model, result.model, samples) > quality(model, integer.model, samples)


def test_nothing_is_found_where_every_sum_is_multiplied():
    model = make_shared_sum(node("Conv", ["s", "w"], ["y"], name="next"))
    assert find_unread_nodes(layout_of(model)) == frozenset()


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
