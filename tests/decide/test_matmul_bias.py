"""A MatMul with its bias runs on integers, whatever the runtime makes of the two."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.models import build, info, make_transformer, node, normal, run, weight

import bitwright
from bitwright.decide.layout.static import lay_out
from bitwright.decide.ops.unfused import find_unfused
from bitwright.jobs.opening import open_model
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.numerics.types import INT4, INT32, UINT16
from bitwright.recipe import Override, Placement, Recipe
from bitwright.run.optimized import optimize_model

SHAPES = {
    "a matrix": [6, 16],
    "any number of rows": ["rows", 16],
    "a stack": [2, 6, 16],
    "any number of matrices": ["batch", 6, 16],
    "nothing known but columns": ["batch", "length", 16],
}


def samples(count=6, shape=(2, 6, 16)):
    return [{"x": normal(*shape, seed=seed)} for seed in range(count)]


def make_sum(shape, *, activation=None, bias=None, turned=False):
    """MatMul, Add of a constant and, perhaps, an activation and one more MatMul."""
    bias = normal(8, seed=2) if bias is None else bias
    terms = ["b", "m"] if turned else ["m", "b"]
    constants = {"w": weight(16, 8, seed=1), "b": bias}
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Add", terms, ["s"], name="sum"),
    ]
    result = "s"
    if activation is not None:
        constants["w2"] = weight(8, 4, seed=3)
        nodes += [
            node(activation, ["s"], ["a"], name="act"),
            node("MatMul", ["a", "w2"], ["y"], name="next"),
        ]
        result = "y"
    return build(nodes, [info("x", shape)], [info(result)], constants)


def quantized(model, data, recipe="int8-per-channel", **fields):
    recipe = {"base": recipe, **fields}
    return bitwright.quantize(model, data=data, recipe=recipe, holdout=False, progress=False)


def as_stored(values, found):
    """Return the values that come back from integers, in float64."""
    scale, zero = np.float32(found.scale), found.zero_point
    integers = quantize(values, scale, zero, found.qtype, axis=found.axis)
    return dequantize(integers, scale, zero, axis=found.axis, dtype=np.float64)


def optimized_ops(result):
    optimized = optimize_model(result.model, level="all")
    assert not find_unfused(optimized)
    return Counter(found.op_type for found in optimized.model.graph)


def entry_of_sum(model, **fields):
    recipe = Recipe(name="test", **fields)
    layout = lay_out(open_model(model, recipe).model, recipe)
    key = layout.nodes["sum"].inputs[1]
    return None if key is None else layout.entries[key]


@pytest.mark.parametrize("recipe", ["int8", "int8-per-channel"])
def test_nothing_between_pairs_stays_float_in_a_transformer_of_known_shape(recipe):
    model = make_transformer()
    data = samples(shape=(1, 6, 16))
    result = quantized(model, data, recipe, select={"constant_weights_only": False})
    ops = optimized_ops(result)
    assert ops["QGemm"] == 6
    assert (ops["MatMulIntegerToFloat"], ops["QLinearMatMul"]) == (
        1,
        1,
    )  # scores, and what they weight
    assert not {"Gemm", "MatMul", "FusedGemm", "FusedMatMul", "Relu"} & ops.keys()
    expected = run(model, data[0])[0]
    error = run(result.model, data[0])[0] - expected
    assert 10 * np.log10(np.sum(expected**2) / np.sum(error**2)) > 30


@pytest.mark.parametrize("activation", [None, "Relu", "Gelu"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_product_with_its_bias_runs_on_integers(shape, activation):
    model = make_sum(shape, activation=activation)
    if activation == "Gelu":
        model.opset_import[0].version = 20
    data = samples(shape=(2, 6, 16)[-len(shape) :])
    ops = optimized_ops(quantized(model, data))
    assert not {"Gemm", "MatMul", "FusedGemm", "FusedMatMul"} & ops.keys()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8), (1,), ()])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.sampled(10)
def test_a_bias_of_any_shape_gives_the_numbers_of_the_dequantized_model(shape, turned, rank):
    source = [6, 16] if rank == 2 else [2, 6, 16]
    bias = normal(8, seed=2)[: int(np.prod(shape))].reshape(shape)
    model, data = make_sum(source, bias=bias, turned=turned), samples(shape=source)
    result = quantized(model, data)
    optimized_ops(result)
    plan = result.plan
    for feeds in data[:2]:
        x = as_stored(feeds["x"], plan.parameters("x"))
        w = as_stored(weight(16, 8, seed=1), plan.parameters("w"))
        np.testing.assert_allclose(run(result.model, feeds)[0], x @ w + bias, atol=1e-4)


def test_a_bias_larger_than_the_product_can_hold_keeps_its_value():
    bias = normal(8, seed=2) * 1e3
    model = make_sum([6, 16], bias=bias)
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.raw_data = (weight(16, 8, seed=1) * np.float32(1e-12)).tobytes()
    data = samples(shape=(6, 16))
    np.testing.assert_allclose(
        run(quantized(model, data).model, data[0])[0], run(model, data[0])[0], rtol=1e-5
    )


def test_a_mask_is_no_bias():
    bias = np.where(np.arange(8) == 3, -np.inf, 0.0).astype(np.float32)
    model = make_sum([6, 16], bias=bias)
    assert entry_of_sum(model) is None
    data = samples(shape=(6, 16))
    assert np.all(run(quantized(model, data).model, data[0])[0][:, 3] == -np.inf)


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({}, True),
        ({"per_channel": True}, True),
        ({"format": "qoperator"}, False),
        ({"quantize_bias": False}, False),
        ({"activation": UINT16}, False),
        ({"weight": INT4}, False),
        ({"overrides": {"b": Override(symmetric=True)}}, False),
    ],
)
def test_the_bias_is_int32_where_an_integer_product_adds_it(fields, stored):
    entry = entry_of_sum(make_sum([2, 6, 16]), **fields)
    assert (entry is not None) == stored
    if entry is not None:
        assert (entry.role, entry.qtype, entry.bias_of) == ("bias", INT32, ("x", "w"))


def test_without_float_bias_add_the_product_and_the_sum_have_pairs_of_their_own():
    recipe = Recipe(name="test", place=Placement(float_bias_add=False, isolated=True))
    layout = lay_out(open_model(make_sum([6, 16]), recipe).model, recipe)
    assert layout.nodes["product"].outputs == ("m",)
    assert layout.nodes["sum"].inputs == ("m", "b")


@pytest.mark.parametrize(("activation", "written"), [("Relu", True), ("Gelu", False)])
def test_a_sum_is_quantized_at_once_where_a_product_reads_it_only_moved_or_clipped(
    activation, written
):
    model = make_sum([2, 6, 16], activation=activation)
    model.opset_import[0].version = 20
    recipe = Recipe(name="test")
    layout = lay_out(open_model(model, recipe).model, recipe)
    assert layout.nodes["sum"].outputs == (("s",) if written else (None,))
