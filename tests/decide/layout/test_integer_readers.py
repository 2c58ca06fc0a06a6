"""Sums that only float nodes read stay float, whatever form an exporter gives their inputs."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, make_samples, node, normal, quality, weight
from support.qat_models import fused_ops

import bitwright
from bitwright.decide.layout.integer_readers import find_unread_nodes
from bitwright.decide.layout.static import lay_out
from bitwright.jobs.opening import open_model
from bitwright.numerics.types import UINT16
from bitwright.recipe import Override, Placement, Recipe, Selection

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


def layout_of(model, **fields):
    recipe = Recipe(**fields)
    return lay_out(open_model(model, recipe).model, recipe)


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
        quantized = bitwright.quantize(model, data=samples).model
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
    result = bitwright.quantize(model, data=samples)
    assert result.plan.outputs == {"y": None}
    assert fused_ops(result.model, tmp_path)[kernel] == 1
    rounded = Recipe(place=Placement(isolated=True, float_bias_add=False))
    integer = bitwright.quantize(model, recipe=rounded, data=samples)
    assert quality(model, result.model, samples) > quality(model, integer.model, samples)


def test_nothing_is_found_where_every_sum_is_multiplied():
    model = make_shared_sum(node("Conv", ["s", "w"], ["y"], name="next"))
    assert find_unread_nodes(layout_of(model)) == frozenset()
