"""Inputs and outputs in NHWC: the same function, the same names, few transposes."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import FLOAT, build, info, make_cnn, node, normal, weight
from support.rewriting import assert_same, checked, op_types, rewrite

from bitwright.prepare import channels_last, channels_last_inputs

CONV = node("Conv", ["a", "w"], ["c"], name="conv")
CONSTANTS = {"w": weight(4, 3, 3, 3)}


def shapes_of(values):
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


def test_an_image_model_keeps_one_transpose():
    proto = make_cnn()
    model, count, notes = rewrite(proto, channels_last)
    assert (count, op_types(model)["Transpose"]) == (1, 1)
    assert "'x' is fed as NHWC now" in notes[0]
    assert channels_last_inputs(model) == {"x"}
    assert_same(proto, model, transposed=True)


@pytest.mark.parametrize("shape", [[1, 3, 8, 9], ["n", 3, "h", "w"]])
def test_a_model_from_image_to_image(shape):
    nodes = [node("Relu", ["x"], ["a"]), CONV, node("Sigmoid", ["c"], ["y"])]
    proto = build(nodes, {"x": shape}, {"y": None}, CONSTANTS)
    model, count, _ = rewrite(proto, channels_last)
    assert (count, op_types(model)["Transpose"]) == (2, 2)
    after = checked(model)
    assert shapes_of(after.graph.input) == [[shape[0], shape[2], shape[3], 3]]
    assert len(shapes_of(after.graph.output)[0]) == 4
    assert_same(proto, model, samples=[{"x": normal(1, 3, 8, 9)}], transposed=True)


@pytest.mark.parametrize("opset", [10, 17, 21])
def test_what_does_not_care_about_the_layout_needs_no_transpose_at_all(opset):
    if opset < 11:
        pad = node("Pad", ["m"], ["p"], mode="constant", pads=[0, 1, 2, 3, 0, 4, 0, 1])
    else:
        pad = node("Pad", ["m", "pads"], ["p"])
    nodes = [
        node("Mul", ["x", "scale"], ["s"]),
        node("Add", ["shift", "s"], ["m"]),
        pad,
        node("PRelu", ["p", "slope"], ["r"]),
        node("Concat", ["r", "r2"], ["y"], axis=1),
        node("Relu", ["z"], ["r2"]),
    ]
    nodes[-2:] = nodes[:-3:-1]
    constants = {
        "scale": normal(3, 1, 1),
        "shift": normal(1, 3, 8, 9, seed=1),
        "pads": np.array([0, 1, 2, 3, 0, 4, 0, 1]),
        "slope": normal(8, 1, 1, seed=2),
    }
    if opset < 11:
        del constants["pads"]
    inputs = {"x": [2, 3, 8, 9], "z": [2, 2, 10, 13]}
    proto = build(nodes, inputs, {"y": None}, constants, opset=opset)
    model, count, _ = rewrite(proto, channels_last)
    assert (count, op_types(model)["Transpose"]) == (3, 0)
    assert_same(proto, model, transposed=True)


def test_pads_of_named_axes_follow_them():
    constants = {"pads": np.array([1, 0, 2, 3]), "axes": np.array([-1, 1]), "zero": np.float32(0)}
    pad = node("Pad", ["x", "pads", "zero", "axes"], ["y"])
    proto = build([pad], {"x": [1, 3, 4, 5]}, {"y": None}, constants, opset=18)
    model, _, _ = rewrite(proto, channels_last)
    assert op_types(model) == {"Pad": 1}
    assert_same(proto, model, transposed=True)


def test_transposes_of_the_model_itself_cancel():
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        node("MatMul", ["t", "w"], ["m"]),
        node("Transpose", ["m"], ["y"], perm=[0, 3, 1, 2]),
    ]
    proto = build(nodes, {"x": [2, 3, 4, 5]}, {"y": None}, {"w": normal(3, 6)})
    model, count, _ = rewrite(proto, channels_last)
    assert (count, op_types(model)) == (2, {"MatMul": 1})
    assert_same(proto, model, transposed=True)


def test_an_input_with_several_readers_and_a_residual():
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "x"], ["y"]),
    ]
    constants = {"w": weight(3, 3, 3, 3)}
    proto = build(nodes, {"x": [1, 3, 4, 5]}, {"y": None, "c": None}, constants)
    model, count, _ = rewrite(proto, channels_last)
    assert count == 3
    assert_same(proto, model, transposed=True)


def test_other_ranks_and_initializers_stay():
    nodes = [node("Add", ["x", "v"], ["s"]), node("Mul", ["s", "table"], ["y"])]
    constants = {"table": normal(1, 3, 1, 1)}
    outputs = [info("y", None, FLOAT)]
    proto = build(nodes, {"x": [1, 3, 4, 5], "v": [5]}, outputs, constants)
    model, _, _ = rewrite(proto, channels_last)
    assert channels_last_inputs(model) == {"x"}
    assert [len(v.shape) for v in model.graph.inputs] == [4, 1]
    assert_same(proto, model, transposed=True)


def test_an_input_that_is_returned_as_it_is():
    proto = build([node("Relu", ["x"], ["y"])], {"x": [1, 3, 4, 5]}, {"y": None, "x": [1, 3, 4, 5]})
    model, _, _ = rewrite(proto, channels_last)
    assert_same(proto, model, transposed=True)


def test_a_body_that_reads_an_input_reads_it_turned_back():
    body = build([node("Conv", ["x", "w"], ["out"])], {}, {"out": None}).graph
    choice = node("If", ["yes"], ["y"], name="choice", then_branch=body, else_branch=body)
    constants = {"yes": np.array(True), "w": weight(2, 3, 3, 3)}
    outputs = {"y": [1, 2, 2, 3]}
    proto = build([choice], {"x": [1, 3, 4, 5]}, outputs, constants)
    model, count, _ = rewrite(proto, channels_last)
    assert count == 2
    assert_same(proto, model, transposed=True)


@pytest.mark.parametrize("before", [[], [node("Mul", ["x", "two"], ["m"])]])
def test_a_model_that_is_nhwc_already_stays_as_it_is(before):
    nodes = [
        *before,
        node("Transpose", ["m" if before else "x"], ["a"], perm=[0, 3, 1, 2]),
        CONV,
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Relu", ["t"], ["y"]),
    ]
    proto = build(nodes, {"x": [1, 8, 9, 3]}, {"y": None}, {**CONSTANTS, "two": np.float32(2)})
    model, count, notes = rewrite(proto, channels_last)
    assert count == 0
    assert channels_last_inputs(model) == frozenset()
    assert notes == ["'x' stays: it is NHWC already", "output 'y' stays: it is NHWC already"]
    assert_same(proto, model, samples=[{"x": normal(1, 8, 9, 3)}])


def test_the_shape_tells_the_layout_where_nothing_reads_channels_first():
    flat = node("Reshape", ["x", "shape"], ["y"])
    for shape, count in (([1, 8, 9, 3], 0), ([1, 3, 8, 9], 1), ([1, 8, 9, 8], 1)):
        proto = build([flat], {"x": shape}, {"y": None}, {"shape": np.array([1, -1])})
        assert rewrite(proto, channels_last)[1] == count
    proto = build(
        [node("Conv", ["x", "k"], ["y"])],
        {"x": [1, 8, 9, 3]},
        {"y": None},
        {"k": weight(4, 8, 3, 3)},
    )
    assert rewrite(proto, channels_last)[1] == 2  # eight channels of 9 x 3
