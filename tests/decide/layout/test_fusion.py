"""What an NPU recipe quantizes, op by op, and which neighbours are one operation to it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.models import build, info, make_transformer, node, normal, run, weight
from support.npu_recipes import npu_recipe
from support.op_models import OP_MODELS

import bitwright
from bitwright import graph
from bitwright.decide.layout.static import lay_out
from bitwright.decide.ops.unfused import find_unfused
from bitwright.jobs.opening import open_model
from bitwright.numerics.quantize import dequantize, quantize
from bitwright.numerics.types import INT4, INT32, UINT16
from bitwright.recipe import Override, Placement, Recipe, Selection
from bitwright.run.optimized import optimize_model


def layout_of(model, recipe=None):
    loaded = graph.load_model(model)
    graph.normalize(loaded)
    graph.infer_shapes(loaded)
    for planned in loaded.graph:
        if planned.name.startswith("simulated"):
            planned.metadata_props["bitwright.role"] = "simulation"
    return lay_out(loaded, recipe or npu_recipe())


def ending_at(op_type):
    """Return the model of an op, cut off behind it: its result is the model's."""
    model = OP_MODELS[op_type]()
    result = next(n for n in model.graph.node if n.name == "op").output[0]
    del model.graph.node[-1]
    del model.graph.output[1:]
    model.graph.output[0].name = result
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


# The table ------------------------------------------------------------------------------------

WITH_THEIR_OWN_SCALE = """
Tanh Gelu Softmax MatMul Conv ConvTranspose InstanceNormalization LayerNormalization Add Mul Concat
Erf Sub Div Min Max LpNormalization ReduceMean AveragePool GlobalAveragePool Sigmoid
""".split()
WITH_THE_SCALE_OF_THEIR_INPUT = """
MaxPool Reshape Transpose Squeeze Unsqueeze Resize Gather Slice Pad DepthToSpace SpaceToDepth
""".split()
FUSED = ["Relu", "Clip", "LeakyRelu", "PRelu"]
FLOAT = ["Flatten", "TopK", "CumSum", "GatherElements", "BatchNormalization"]


def check_inputs(model, layout, skipped=()):
    (op,) = [n for n in model.graph.node if n.name == "op"]
    floats = {"h", "s", "t", "u", "w", "b", "scale", "shift", "slope"} - set(skipped)
    planned = layout.nodes["op"].inputs
    for name, key in zip(op.input, planned, strict=True):
        assert (key is not None) == (name in floats), name


@pytest.mark.parametrize("op_type", WITH_THEIR_OWN_SCALE)
def test_an_op_whose_result_leaves_the_model_is_quantized_at_all_its_edges(op_type):
    model = ending_at(op_type)
    layout = layout_of(model)
    check_inputs(model, layout)
    result = layout.entries[layout.nodes["op"].outputs[0]]
    assert result.same_as is None
    assert layout.outputs["k"] == "k"


@pytest.mark.parametrize("op_type", WITH_THE_SCALE_OF_THEIR_INPUT)
def test_an_op_that_moves_values_shares_its_input_s_scale_even_at_the_end(op_type):
    model = ending_at(op_type)
    layout = layout_of(model)
    check_inputs(model, layout)
    planned = layout.nodes["op"]
    assert layout.entries[planned.outputs[0]].same_as == planned.inputs[0]


@pytest.mark.parametrize("op_type", FUSED)
def test_an_activation_behind_a_convolution_is_one_operation_with_it(op_type):
    model = ending_at(op_type)
    layout = layout_of(model)
    before, planned = layout.nodes["before"], layout.nodes["op"]
    assert (before.action, planned.action) == ("quantize", "quantize")
    assert before.outputs == (None,)
    assert planned.inputs[0] is None
    assert planned.outputs == ("k",)
    assert "h" not in layout.entries
    assert "h" not in layout.observed
    assert ("slope" in layout.entries) == (op_type == "PRelu")


@pytest.mark.parametrize("op_type", FLOAT)
def test_an_op_that_the_npu_lacks_stays_float(op_type):
    assert layout_of(OP_MODELS[op_type]()).nodes["op"].action == "float"


def test_a_hard_sigmoid_of_another_slope_stays_float():
    model = OP_MODELS["HardSigmoid"]()
    assert "alpha 1/6" in layout_of(model).nodes["op"].reason
    hard = next(n for n in model.graph.node if n.name == "op")
    hard.attribute.add(name="alpha", f=1 / 6, type=1)
    assert layout_of(model).nodes["op"].action == "quantize"


# What is one operation ------------------------------------------------------------------------


def conv_then(nodes, constants=(), **outputs):
    first = node("Conv", ["x", "w_in"], ["h"], name="before", pads=[1, 1, 1, 1])
    constants = {"w_in": weight(8, 3, 3, 3), **dict(constants)}
    return build([first, *nodes], {"x": [1, 3, 6, 6]}, outputs or {"k": None}, constants)


def clip(low, high):
    return conv_then(
        [node("Clip", ["h", "low", "high"], ["k"], name="op")],
        {"low": np.float32(low), "high": np.float32(high)},
    )


@pytest.mark.parametrize(
    ("bounds", "fused"), [((0, 6), True), ((0, 1), True), ((-1, 1), False), ((0, 4), False)]
)
def test_only_the_clips_that_the_npu_has_are_fused(bounds, fused):
    layout = layout_of(clip(*bounds))
    assert (layout.nodes["op"].inputs[0] is None) == fused
    assert ("h" in layout.entries) == (not fused)


def test_an_activation_with_a_second_reader_beside_it_is_not_fused():
    nodes = [
        node("Relu", ["h"], ["k"], name="op"),
        node("Add", ["h", "k"], ["y"], name="add"),
    ]
    assert layout_of(conv_then(nodes, y=None)).nodes["op"].inputs == ("h",)


def test_an_activation_of_a_model_output_is_not_fused():
    model = conv_then([node("Relu", ["h"], ["k"], name="op")], h=None, k=None)
    assert layout_of(model).nodes["op"].inputs == ("h",)


def test_only_the_activations_that_the_recipe_names_are_fused():
    recipe = npu_recipe(place={"fuse_activations": ("Relu",)})
    assert layout_of(OP_MODELS["LeakyRelu"](), recipe).nodes["op"].inputs == ("h",)


def test_nothing_is_fused_with_an_activation_that_stays_float():
    recipe = npu_recipe(select=Selection(exclude=("op",)))
    layout = layout_of(OP_MODELS["Relu"](), recipe)
    assert layout.nodes["before"].outputs == ("h",)


def test_nothing_is_fused_with_a_float_producer():
    recipe = npu_recipe(select=Selection(exclude=("before",)))
    layout = layout_of(OP_MODELS["Relu"](), recipe)
    assert layout.nodes["op"].inputs == ("h",)


def test_a_tensor_with_an_override_keeps_its_pair():
    recipe = npu_recipe(overrides={"h": Override(symmetric=True)})
    assert layout_of(OP_MODELS["Relu"](), recipe).nodes["op"].inputs == ("h",)


def test_a_residual_sum_and_its_relu_are_one_operation():
    nodes = [
        node("Conv", ["h", "w2"], ["c"], name="conv"),
        node("Add", ["c", "h"], ["a"], name="add"),
        node("Relu", ["a"], ["k"], name="relu"),
    ]
    layout = layout_of(conv_then(nodes, {"w2": weight(8, 8, 1, 1)}))
    assert layout.nodes["add"].inputs == ("c", "h")
    assert layout.nodes["add"].outputs == (None,)
    assert layout.nodes["relu"].outputs == ("k",)


def test_op_types_with_float_results_take_their_activation_along():
    recipe = npu_recipe(place={"unquantized_outputs": ("Conv",)})
    layout = layout_of(ending_at("Relu"), recipe)
    assert layout.nodes["before"].outputs == (None,)
    assert layout.nodes["op"].inputs == (None,)
    assert layout.nodes["op"].outputs == (None,)


def padded_pool():
    nodes = [
        node("Pad", ["h", "by"], ["p"], name="pad"),
        node("AveragePool", ["p"], ["q"], name="pool", kernel_shape=[2, 2]),
        node("Mul", ["q", "factor"], ["m"], name="simulated"),
        node("Relu", ["m"], ["k"], name="relu"),
    ]
    constants = {"by": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "factor": np.float32(0.984375)}
    return conv_then(nodes, constants)


def test_pad_pool_simulation_and_activation_are_one_operation():
    layout = layout_of(padded_pool())
    assert {"p", "q", "m", "factor"}.isdisjoint(layout.entries)
    assert layout.nodes["pad"].inputs == ("h", None)
    assert layout.nodes["simulated"].action == "quantize"
    assert layout.nodes["relu"].outputs == ("k",)


def test_without_limits_a_pad_has_its_pair():
    assert "p" in layout_of(padded_pool(), npu_recipe(limits=None)).entries


def test_a_simulation_goes_with_its_node_whatever_is_selected():
    recipe = npu_recipe(op_types=("Conv", "AveragePool"))
    layout = layout_of(padded_pool(), recipe)
    assert layout.nodes["simulated"].outputs == ("m",)
    recipe = npu_recipe(select=Selection(exclude=("pool",)))
    assert layout_of(padded_pool(), recipe).nodes["simulated"].reason == (
        "it completes a node that is float"
    )


@pytest.mark.parametrize("kind", ["Relu", "LeakyRelu"])
def test_a_fused_model_computes_like_the_float_one(kind):
    from bitwright import quantize

    data = [{"x": normal(1, 3, 6, 6, seed=seed)} for seed in range(16)]
    result = quantize(OP_MODELS[kind](), data=data, recipe=npu_recipe(), progress=False)
    assert result.outputs[0].sqnr > 25
    assert result.plan.nodes["before"].outputs == (None,)


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
