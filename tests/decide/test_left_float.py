"""Nodes left float in a plan: what follows from an action alone, and what stays as it is."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import (
    build,
    constants_of,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    weight,
)

import bitwright
from bitwright.assess.bench.profile import profile_models
from bitwright.decide.left_float import leave_float
from bitwright.errors import PlanError
from bitwright.jobs.opening import open_model
from bitwright.plan import QuantPlan

ISOLATED = {"base": "int8", "place": {"isolated": True, "float_bias_add": False}}
PAIR = ("QuantizeLinear", "DequantizeLinear")


def set_float(plan, names, **more):
    """Return the plan with only the actions of these nodes changed, as in its file."""
    data = json.loads(plan.to_json())
    for name in names:
        data["nodes"][name].update(action="float", **more)
    return QuantPlan.from_json(json.dumps(data))


def make_branches():
    """Convolutions, clips in a row, a pool, a sum and a concatenation; two outputs."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="stem", pads=[1, 1, 1, 1]),
        node("Clip", ["c1", "zero"], ["k1"], name="clip"),
        node("Relu", ["k1"], ["r1"], name="relu"),
        node("Conv", ["r1", "w2"], ["left"], name="left", pads=[1, 1, 1, 1]),
        node("MaxPool", ["r1"], ["p"], name="pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", ["p", "w3", "b3"], ["right"], name="right"),
        node("Add", ["left", "right"], ["a"], name="sum"),
        node("Relu", ["a"], ["r2"], name="relu2"),
        node("Concat", ["r2", "p"], ["j"], name="join", axis=1),
        node("Conv", ["j", "w4"], ["y"], name="head"),
        node("Sigmoid", ["r2"], ["side"], name="gate"),
    ]
    constants = {
        "w1": weight(8, 3, 3, 3, seed=1),
        "b1": normal(8, seed=2, size=0.1),
        "w2": weight(8, 8, 3, 3, seed=3),
        "w3": weight(8, 8, 1, 1, seed=4),
        "b3": normal(8, seed=5, size=0.1),
        "w4": weight(4, 16, 1, 1, seed=6),
        "zero": np.array(0, np.float32),
    }
    outputs = {"y": [1, 4, 8, 8], "side": [1, 8, 8, 8]}
    return build(nodes, {"x": [1, 3, 8, 8]}, outputs, constants)


def planned(model, recipe):
    samples = make_samples(model)
    return model, bitwright.make_plan(model, data=samples, recipe=recipe), samples


@pytest.fixture(scope="module", params=["int8-per-channel", "int8", "isolated"])
def branches(request):
    recipe = ISOLATED if request.param == "isolated" else {"base": request.param}
    return planned(make_branches(), recipe | {"optimize": False})


@pytest.fixture(scope="module", params=["qdq", "qoperator"])
def digits(request):
    demo = bitwright.load_demo()
    samples = [{"image": image[None]} for image in demo.calibration[:4]]
    recipe = {"base": "int8-per-channel", "format": request.param}
    plan = bitwright.make_plan(demo.model_path, data=samples, recipe=recipe)
    whole = bitwright.apply_plan(plan, demo.model_path, data=samples)
    return demo.model_path, whole, samples


@pytest.fixture(scope="module")
def cnn():
    return planned(make_cnn(), "int8-per-channel")


RECIPES = ["int8", "int8-per-channel", "npu-cnn", "npu-transformer", "a16w8", ISOLATED]


@pytest.mark.parametrize("make", [make_branches, make_cnn, make_mlp, make_transformer])
@pytest.mark.parametrize("recipe", [*RECIPES, "int8-dynamic", "int8-weights"])
def test_a_plan_that_nobody_edited_comes_back_equal(make, recipe):
    model = make() if make is make_branches else make(opset=21, ir_version=10)
    if make is make_branches and recipe == "int8-weights":
        return  # it has no products of matrices
    data, force = make_samples(model, 4), recipe == "int8-dynamic"
    plan = bitwright.make_plan(model, data=data, recipe=recipe, force_dynamic=force)
    assert leave_float(open_model(model, plan.recipe).model, plan) == plan


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_exactly_the_nodes_whose_action_is_float_are(branches, data):
    model, plan, samples = branches
    chosen = data.draw(st.sets(st.sampled_from(sorted(plan.nodes))))
    result = bitwright.apply_plan(set_float(plan, chosen), model, data=samples[:2])
    assert quality(model, result, samples[:2]) > 20
    # A clip goes with the node that it is computed with.
    in_float = {name for name, item in result.plan.nodes.items() if not item.quantized}
    clips = {name for name, item in plan.nodes.items() if item.action == "absorb"}
    unplanned = {name for name, item in plan.nodes.items() if not item.quantized}
    assert in_float - clips == (chosen | unplanned) - clips
    assert clips & chosen <= in_float
    for key, entry in result.plan.tensors.items():
        same = plan.tensors.get(key)
        assert entry == same if same else entry.same_as in plan.tensors
    _check_pairs(result, in_float)
    assert leave_float(open_model(model, plan.recipe).model, result.plan) == result.plan


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_nodes_of_a_trained_model_may_be_float(digits, data):
    model, whole, samples = digits
    plan = whole.plan
    chosen = data.draw(st.sets(st.sampled_from(sorted(plan.nodes))))
    result = bitwright.apply_plan(set_float(plan, chosen), model, data=samples)
    assert result.outputs[0].sqnr > whole.outputs[0].sqnr - 1.5  # errors may cancel each other
    in_float = {name for name, item in result.plan.nodes.items() if not item.quantized}
    assert chosen <= in_float and not result.plan.rounded_by_runtime
    if plan.recipe.format == "qdq":
        _check_pairs(result, in_float)


def test_a_trained_model_whose_nodes_are_all_float_is_the_float_model(digits):
    model, whole, samples = digits
    result = bitwright.apply_plan(set_float(whole.plan, whole.plan.nodes), model, data=samples)
    assert result.outputs[0].sqnr > 100 and not [op for op in ops(result) if "Quant" in op]


def test_a_plan_with_bodies_is_applied_and_a_node_in_one_is_float():
    model = make_if()
    recipe = {"base": "int8", "select": {"subgraphs": True}}
    model, plan, samples = planned(model, recipe)
    whole = bitwright.apply_plan(plan, model, data=samples)
    assert whole.plan == plan
    result = bitwright.apply_plan(set_float(plan, ["inner"]), model, data=samples)
    assert not result.plan.nodes["inner"].quantized
    assert quality(model, result, samples) > quality(model, whole, samples)


def make_if():
    """A product in each branch of an If."""

    def branch(name, seed):
        product = node("MatMul", ["x", f"w{seed}"], [f"{name}_y"], name=name)
        result = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 8])
        return helper.make_graph([product], name, [], [result])

    nodes = [
        node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"], name="test"),
        node(
            "If",
            ["positive"],
            ["y"],
            name="if",
            then_branch=branch("inner", 1),
            else_branch=branch("other", 2),
        ),
    ]
    constants = {"w1": weight(8, 8, seed=1), "w2": weight(8, 8, seed=2), "zero": np.float32(0)}
    return build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, constants)


def _check_pairs(result, in_float):
    """Every pair has an integer node on one side of it, and no float node has stored weights."""
    graph = result.to_proto().graph
    makers = {name: item for item in graph.node for name in item.output}
    readers = {}
    for item in graph.node:
        for name in item.input:
            readers.setdefault(name, []).append(item)
    for item in graph.node:
        if item.op_type == "QuantizeLinear":
            [behind] = readers[item.output[0]]
            around = [makers.get(item.input[0]), *readers.get(behind.output[0], [])]
            names = {each.name for each in around if each is not None and each.op_type not in PAIR}
            assert names - in_float
        if item.name in in_float:
            found = (makers[name] for name in item.input if name in makers)
            stored = [each for each in found if each.op_type == "DequantizeLinear"]
            assert all(each.input[0] in makers for each in stored)


@pytest.mark.parametrize("recipe", ["int8", ISOLATED, "a16w8"])
def test_all_nodes_set_to_float_give_the_float_model(recipe):
    model, plan, samples = planned(make_cnn(), recipe)
    result = bitwright.apply_plan(set_float(plan, plan.nodes), model, data=samples)
    assert not [op for op in ops(result) if "Quantize" in op]
    assert quality(model, result, samples) > 100
    assert "Left float: Conv x2 because the plan says so" in result.plan.summary()


@pytest.mark.parametrize("format", ["qdq", "qoperator"])
def test_a_convolution_between_integers_reads_a_copy_so_that_the_runtime_leaves_it(format):
    model, plan, samples = planned(make_cnn(), {"base": "int8-per-channel", "format": format})
    for names in (["conv2"], ["pool1", "conv2"]):
        result = bitwright.apply_plan(set_float(plan, names), model, data=samples)
        assert not result.plan.rounded_by_runtime
        assert constants_of(result).keys() >= {"w2", "b2"}
        # What feeds it keeps its integer kernel.
        [profile] = profile_models([result.model], [samples], seconds=0.01)
        assert Counter(each.op for each in profile.nodes)["QLinearConv"] == 1


def test_an_absorbed_relu_set_to_float_stands_behind_the_pair_of_its_convolution(cnn):
    model, plan, samples = cnn
    result = bitwright.apply_plan(set_float(plan, ["relu1"]), model, data=samples)
    assert result.plan.nodes["conv1"].outputs == result.plan.nodes["relu1"].inputs == ("c1",)
    assert result.plan.tensors["c1"].same_as == "r1"
    whole = bitwright.apply_plan(plan, model, data=samples)
    assert quality(model, result, samples) == pytest.approx(quality(model, whole, samples))


def test_reasons_are_kept_and_unknown_nodes_are_refused(cnn):
    model, plan, _ = cnn
    prepared = open_model(model, plan.recipe).model
    left = leave_float(prepared, plan, {"conv1": "41 µs instead of 22 µs"})
    assert left.nodes["conv1"].reason == "41 µs instead of 22 µs"
    assert left.nodes["relu1"].reason == "the node that it completes is float"
    by_hand = set_float(plan, ["conv1"], reason="too sensitive")
    assert leave_float(prepared, by_hand).nodes["conv1"].reason == "too sensitive"
    assert "w1" not in left.tensors and "b1" not in left.tensors
    with pytest.raises(PlanError, match=r"no node 'conv3'.*Did you mean 'conv"):
        leave_float(prepared, plan, {"conv3": ""})


def test_pairs_around_float_nodes_go_where_whole_entries_are_replaced(branches):
    model, plan, samples = branches
    data = json.loads(plan.to_json())
    for name in ("left", "right", "sum", "relu2", "pool", "join", "head"):
        op = plan.nodes[name].op
        data["nodes"][name] = {"op": op, "action": "float", "reason": "by hand"}
    result = bitwright.apply_plan(QuantPlan.from_json(json.dumps(data)), model, data=samples)
    _check_pairs(result, {name for name, item in result.plan.nodes.items() if not item.quantized})


def test_a_weight_in_blocks_whose_nodes_are_float_is_float():
    model, plan, samples = planned(make_mlp(opset=21, ir_version=10), "int8-weights")
    first = next(name for name, item in plan.nodes.items() if item.quantized)
    result = bitwright.apply_plan(set_float(plan, [first]), model, data=samples)
    assert ops(result)["MatMulNBits"] == len(plan.weights) - 1
    assert first in {item.name for item in result.to_proto().graph.node}


def test_a_trained_model_keeps_the_pairs_around_its_float_nodes(cnn):
    model, plan, samples = cnn
    trained = bitwright.apply_plan(plan, model, data=samples).to_proto()
    found = bitwright.import_qat(trained)
    applied = bitwright.apply_plan(set_float(found.plan, ["fc"]), trained)
    assert ops(applied)["QuantizeLinear"] == ops(found)["QuantizeLinear"]
    assert applied.plan.nodes["fc"].inputs[1:] == (None, None)
    assert bitwright.apply_plan(found.plan, trained).plan == found.plan
