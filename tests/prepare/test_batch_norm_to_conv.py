"""A batch norm that nothing takes becomes a depthwise convolution that computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import build, node, normal
from support.rewriting import assert_same, op_types, rewrite

from bitwright import graph
from bitwright.prepare import batch_norm_to_conv

PARAMETERS = {
    "scale": 1 + normal(4, seed=1, size=0.3),
    "bias": normal(4, seed=2),
    "mean": normal(4, seed=3),
    "var": np.abs(normal(4, seed=4)) + 0.1,
}


def norm(x="x", to="y", **attributes):
    inputs = [x, "scale", "bias", "mean", "var"]
    return node("BatchNormalization", inputs, [to], name="norm", **attributes)


@pytest.mark.parametrize("space", [(6,), (6, 5), (3, 4, 5)])
@pytest.mark.parametrize("opset", [9, 14, 15, 21])
def test_it_computes_the_same_right_behind_an_input(space, opset):
    proto = build([norm()], {"x": [2, 4, *space]}, {"y": None}, PARAMETERS, opset=opset)
    model, count, notes = rewrite(proto, batch_norm_to_conv)
    assert (count, notes, op_types(model)) == (1, [], {"Conv": 1})
    assert next(iter(model.graph)).name == "norm"
    assert_same(proto, model)


@pytest.mark.parametrize("epsilon", [None, 1e-3])
def test_the_default_epsilon_is_the_one_of_onnx(epsilon):
    constants = PARAMETERS | {"var": np.full(4, 1e-5, np.float32)}
    attributes = {} if epsilon is None else {"epsilon": epsilon}
    proto = build([norm(**attributes)], {"x": [1, 4, 3, 3]}, {"y": None}, constants)
    model, count, _ = rewrite(proto, batch_norm_to_conv)
    assert count == 1
    assert_same(proto, model, rtol=1e-4)


def test_parameters_that_others_read_stay_as_they_are():
    nodes = [norm(), node("Mul", ["y", "shared"], ["z"]), node("Identity", ["scale"], ["s"])]
    constants = PARAMETERS | {"shared": normal(4, 1, 1)}
    proto = build(nodes, {"x": ["n", 4, 3, 3]}, {"y": None, "z": None, "s": None}, constants)
    model, count, _ = rewrite(proto, batch_norm_to_conv)
    assert count == 1
    assert_same(proto, model)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [([2, 4], "2 dimensions"), ([2, 4, 1, 1, 1, 1], "6 dimensions"), (None, "rank")],
)
def test_it_says_why_one_of_another_rank_stays(shape, reason):
    proto = build([norm()], {"x": shape}, {"y": None}, PARAMETERS)
    model, count, notes = rewrite(proto, batch_norm_to_conv, infer=shape is not None)
    assert (count, op_types(model)) == (0, {"BatchNormalization": 1})
    assert reason in notes[0]
    assert "'norm'" in notes[0]


def test_the_rank_behind_a_convolution_is_that_of_its_kernel():
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), norm("c")]
    constants = PARAMETERS | {"w": normal(4, 3, 3, 3)}
    proto = build(nodes, {"x": [1, 3, 5, 5]}, {"y": None, "r": None}, constants)
    model, count, notes = rewrite(proto, batch_norm_to_conv, infer=False)
    assert (count, notes, op_types(model)["Conv"]) == (1, [], 2)
    graph.infer_shapes(model)
    assert_same(proto, model)


def test_it_says_so_where_parameters_come_at_run_time():
    inputs = {"x": [1, 4, 3, 3], "scale": [4]}
    constants = {k: v for k, v in PARAMETERS.items() if k != "scale"}
    _, count, notes = rewrite(build([norm()], inputs, {"y": None}, constants), batch_norm_to_conv)
    assert count == 0
    assert "run time" in notes[0]
