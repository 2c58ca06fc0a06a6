"""Which scales a trained model gives to which tensors."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.models import build, info, node, normal, weight

import bitwright
from bitwright import graph
from bitwright.decide.layout.trained import lay_out_trained, trained_recipe
from bitwright.numerics.types import INT8, INT16, UINT8
from bitwright.plan import Parameters
from bitwright.recipe import Recipe, Selection

RECIPE = Recipe(name="trained")


def scale(value, zero=0, qtype=UINT8, axis=None):
    return Parameters(qtype, np.asarray(value, np.float64), np.asarray(zero, np.int64), axis)


def lay_out(proto, reads, results=None, recipe=RECIPE):
    model = graph.load_model(proto)
    graph.normalize(model)
    graph.infer_shapes(model)
    nodes = {item.name: item for item in model.graph}
    found = {(nodes[name], index): given for (name, index), given in reads.items()}
    layout, notes = lay_out_trained(model, found, results or {}, recipe)
    return layout, notes


def conv_relu(pool=False, bias=True):
    nodes = [
        node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], name="conv"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "v"], ["y"], name="next"),
    ]
    constants = {"w": weight(4, 3, 3, 3), "b": normal(4), "v": weight(2, 4, 1, 1)}
    if not bias:
        del constants["b"]
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 2, 3, 3]}, constants)


def reads_of_conv_relu(between=None):
    reads = {
        ("conv", 0): scale(0.1, 128),
        ("conv", 1): scale(0.02, 0, INT8),
        ("next", 1): scale(0.03, 0, INT8),
    }
    reads[between or ("next", 0)] = scale(0.05)
    return reads


@pytest.mark.parametrize("between", [("next", 0), ("pool", 0), ("relu", 0)])
def test_one_scale_reaches_all_of_conv_relu_and_pool_from_wherever_it_stands(between):
    layout, _ = lay_out(conv_relu(), reads_of_conv_relu(between), {"y": scale(0.2, 100)})
    assert {name: plan.action for name, plan in layout.nodes.items()} == {
        "conv": "quantize",
        "relu": "quantize",
        "pool": "quantize",
        "next": "quantize",
    }
    assert layout.entries["c"].absorbed_by == "relu"
    roots = {layout.root(key) for key in ("c", "r", "p")}
    assert len(roots) == 1
    assert layout.entries[roots.pop()].override.scale == 0.05


def test_a_bias_takes_the_product_of_its_scales():
    layout, _ = lay_out(conv_relu(), reads_of_conv_relu())
    assert layout.entries["b"].bias_of == ("x", "w")
    assert layout.nodes["conv"].inputs == ("x", "w", "b")


def test_a_node_with_a_missing_scale_stays_float_and_says_which():
    for missing, reason in (
        (("conv", 0), "its input 'x' has no trained scale"),
        (("conv", 1), "its weight 'w' has no trained scale"),
    ):
        reads = reads_of_conv_relu()
        del reads[missing]
        layout, _ = lay_out(conv_relu(), reads, recipe=RECIPE.replace(format="qoperator"))
        assert layout.nodes["conv"].action == "float"
        assert layout.nodes["conv"].reason == reason
    layout, _ = lay_out(conv_relu(), reads_of_conv_relu())
    assert layout.nodes["next"].reason == "its output 'y' has no trained scale"


def test_what_only_stores_a_trained_weight_counts_as_quantized_in_qdq():
    layout, _ = lay_out(conv_relu(), {("conv", 1): scale(0.02, 0, INT8)})
    assert layout.nodes["conv"].action == "quantize"
    assert layout.nodes["conv"].inputs == (None, "w", None)


def test_a_scale_does_not_pass_an_op_that_computes():
    nodes = [
        node("Resize", ["x", "", "s"], ["r"], name="resize", mode="linear"),
        node("AveragePool", ["r"], ["y"], name="average", kernel_shape=[2, 2]),
    ]
    proto = build(
        nodes,
        {"x": [1, 3, 4, 4]},
        {"y": [1, 3, 7, 7]},
        {"s": np.array([1, 1, 2, 2], np.float32)},
    )
    layout, _ = lay_out(proto, {("resize", 0): scale(0.1)})
    assert set(layout.entries) == {"x"}


def test_a_scale_passes_a_clip_only_where_its_bounds_lie_on_the_grid():
    def clipped(top):
        nodes = [
            node("Clip", ["x", "lo", "hi"], ["c"], name="clip"),
            node("Abs", ["c"], ["y"], name="abs"),
        ]
        constants = {"lo": np.float32(0), "hi": np.float32(top)}
        return build(nodes, {"x": [4]}, {"y": [4]}, constants)

    for top, passes in ((6.0, True), (6.04, False), (100.0, True)):
        layout, _ = lay_out(clipped(top), {("clip", 0): scale(0.1)})
        assert ("c" in layout.entries) is passes, top


def test_a_concat_passes_a_scale_to_all_its_inputs_and_from_them_if_they_agree():
    nodes = [
        node("Abs", ["x"], ["a"], name="abs"),
        node("Neg", ["x"], ["n"], name="neg"),
        node("Concat", ["a", "n"], ["c"], name="cat", axis=0),
        node("Abs", ["c"], ["y"], name="last"),
    ]
    proto = build(nodes, {"x": [4]}, {"y": [8]})
    layout, _ = lay_out(proto, {("last", 0): scale(0.1)})
    assert {"a", "n", "c"} <= set(layout.entries)
    layout, _ = lay_out(proto, {("cat", 0): scale(0.1), ("cat", 1): scale(0.1)})
    assert "c" in layout.entries
    layout, _ = lay_out(proto, {("cat", 0): scale(0.1), ("cat", 1): scale(0.2)})
    assert "c" not in layout.entries


def test_scales_that_differ_around_a_move_both_stay_and_the_node_is_float():
    nodes = [
        node("Transpose", ["x"], ["t"], name="turn"),
        node("Abs", ["t"], ["y"], name="abs"),
    ]
    proto = build(nodes, {"x": [2, 3]}, {"y": [3, 2]})
    layout, _ = lay_out(proto, {("turn", 0): scale(0.1), ("abs", 0): scale(0.3)})
    assert layout.nodes["turn"].reason == "its trained scales before and behind it differ"
    assert layout.entries["x"].override.scale == 0.1
    assert layout.entries["t"].override.scale == 0.3


def test_unsigned_weights_beside_signed_activations_become_signed():
    reads = reads_of_conv_relu()
    reads["conv", 0] = scale(0.1, 3, INT8)
    reads["conv", 1] = scale(0.02, 130, UINT8)
    layout, _ = lay_out(conv_relu(), reads)
    assert layout.entries["w"].qtype is INT8
    assert layout.entries["w"].override.zero_point == 2


def test_a_tensor_with_two_scales_has_two_entries():
    nodes = [node("Abs", ["x"], ["a"], name="a"), node("Neg", ["x"], ["b"], name="b")]
    proto = build(nodes, {"x": [4]}, {"a": [4], "b": [4]})
    layout, _ = lay_out(proto, {("a", 0): scale(0.1), ("b", 0): scale(0.2)})
    assert layout.nodes["a"].inputs != layout.nodes["b"].inputs
    assert {entry.override.scale for entry in layout.entries.values()} == {0.1, 0.2}


def test_selection_keeps_nodes_float():
    for select, reason in (
        (Selection(exclude=("conv",)), "it is excluded by name"),
        (Selection(op_types=("MatMul",)), "Conv is not among the op types to quantize"),
    ):
        layout, _ = lay_out(conv_relu(), reads_of_conv_relu(), recipe=RECIPE.replace(select=select))
        assert layout.nodes["conv"].reason == reason
        assert layout.nodes["conv"].inputs[1] is None
    with pytest.raises(bitwright.RecipeError, match="Did you mean 'conv'"):
        select = Selection(exclude=("konv",))
        lay_out(conv_relu(), reads_of_conv_relu(), recipe=RECIPE.replace(select=select))


def test_the_recipe_says_what_was_trained():
    model = graph.load_model(conv_relu(bias=False))
    nodes = {item.name: item for item in model.graph}
    reads = {
        (nodes["conv"], 0): scale(0.1, 0, INT16),
        (nodes["conv"], 1): scale([0.1] * 4, [0] * 4, INT8, axis=0),
    }
    recipe = trained_recipe(reads, RECIPE)
    assert (recipe.activation, recipe.weight, recipe.per_channel) == (INT16, INT8, True)
    reads[nodes["conv"], 1] = scale(0.1, 0, INT8)
    assert not trained_recipe(reads, RECIPE).per_channel
    assert isinstance(model, ir.Model)


@pytest.mark.parametrize(
    ("activation", "weight", "expected"), [(INT8, UINT8, INT8), (UINT8, UINT8, UINT8)]
)
def test_the_recipe_has_no_unsigned_weights_beside_signed_activations(activation, weight, expected):
    nodes = {item.name: item for item in graph.load_model(conv_relu(bias=False)).graph}
    reads = {
        (nodes["conv"], 0): scale(0.1, 0, activation),
        (nodes["conv"], 1): scale(0.1, 0, weight),
    }
    recipe = trained_recipe(reads, RECIPE)
    assert (recipe.activation, recipe.weight) == (activation, expected)


@pytest.mark.parametrize("leaves", [False, True])
def test_what_is_written_as_integers_is_read_so_by_all(leaves):
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Conv", ["c", "v"], ["y"], name="next"),
        node("Erf", ["c"], ["e"], name="erf"),
        node("Shape", ["c"], ["s"], name="shape"),
    ]
    size, constants = [1, 3, 4, 4], {"w": weight(3, 3, 1, 1), "v": weight(3, 3, 1, 1, seed=1)}
    outputs = [info("y", size), info("e", size), info("s", [4], TensorProto.INT64)]
    proto = build(nodes, {"x": size}, outputs + [info("c", size)] * leaves, constants)
    reads = {
        ("conv", 0): scale(0.1),
        ("conv", 1): scale(0.02, 0, INT8),
        ("next", 0): scale(0.05),
        ("next", 1): scale(0.02, 0, INT8),
    }
    layout, notes = lay_out(proto, reads)
    assert layout.nodes["erf"].inputs == ("c",) and layout.nodes["next"].inputs[0] == "c"
    assert not any(layout.nodes["shape"].inputs)
    assert layout.outputs == {"y": None, "e": None, "s": None} | ({"c": "c"} if leaves else {})
    told = "readers without a pair of their own read the dequantized tensor: c"
    assert notes == [told]
    reads["erf", 0] = scale(0.05)
    assert lay_out(proto, reads)[1] == [told] * leaves
    del reads["conv", 0]  # then it computes in float, and is read so
    layout, notes = lay_out(proto, {key: one for key, one in reads.items() if key[0] != "erf"})
    assert not any(layout.nodes["erf"].inputs) and notes == []


@pytest.mark.parametrize(("axis", "count"), [(0, 4), (1, 3)])
def test_scales_that_the_kernel_misreads_keep_a_convolution_float(axis, count):
    reads = reads_of_conv_relu()
    reads["conv", 1] = scale([0.02] * count, [0] * count, INT8, axis)
    layout, _ = lay_out(conv_relu(), reads)
    reason = f"its weight has scales along axis {axis}, which its kernel misreads"
    assert layout.nodes["conv"].reason == (None if axis == 0 else reason)
