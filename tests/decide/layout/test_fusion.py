"""What an NPU recipe quantizes, op by op, and which neighbours are one operation to it."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal, weight
from support.npu_recipes import npu_recipe
from support.op_models import OP_MODELS

from bitwright import graph
from bitwright.decide.layout.static import lay_out
from bitwright.recipe import Override, Selection


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
