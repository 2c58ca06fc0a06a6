import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, constants_of, make_samples, node, normal, run

from bitwright.prepare import give_biases


def given(proto):
    model = ir.from_proto(proto)
    count = give_biases(model).changed
    return count, ir.to_proto(model)


def same(proto, changed):
    [sample] = make_samples(proto, 1)
    np.testing.assert_array_equal(run(proto, sample)[0], run(changed, sample)[0])


@pytest.mark.parametrize(
    ("op", "weight", "x", "attributes"),
    [
        ("Conv", (4, 3, 3, 3), (1, 3, 5, 5), {}),
        ("ConvTranspose", (4, 3, 3, 3), (1, 4, 5, 5), {"group": 2}),
        ("Gemm", (3, 4), (2, 3), {"beta": 0.5}),
        ("Gemm", (4, 3), (2, 3), {"transB": 1}),
    ],
)
def test_a_layer_without_a_bias_gets_zeros(op, weight, x, attributes):
    step = node(op, ["x", "w"], ["y"], name="layer", **attributes)
    proto = build([step], {"x": x}, {"y": None}, {"w": normal(*weight)})
    count, changed = given(proto)
    assert count == 1
    bias = constants_of(changed)[changed.graph.node[0].input[2]]
    assert bias.shape == (run(proto, make_samples(proto, 1)[0])[0].shape[1],)
    assert not bias.any()
    same(proto, changed)


def test_a_bias_that_others_read_is_copied():
    constants = {"w": normal(3, 3), "b": normal(3)}
    steps = [
        node("Gemm", ["x", "w", "b"], ["g"], name="first"),
        node("MatMul", ["g", "w"], ["p"], name="second"),
        node("Add", ["p", "b"], ["y"], name="sum"),
    ]
    proto = build(steps, {"x": [2, 3]}, {"y": None}, constants)
    count, changed = given(proto)
    assert count == 1
    assert changed.graph.node[0].input[2] != changed.graph.node[2].input[1]
    same(proto, changed)


def test_one_number_for_all_channels_is_repeated():
    constants = {"w": normal(3, 4), "b": normal(1)}
    step = node("Gemm", ["x", "w", "b"], ["y"], name="layer")
    proto = build([step], {"x": [2, 3]}, {"y": None}, constants)
    count, changed = given(proto)
    assert count == 1
    assert constants_of(changed)[changed.graph.node[0].input[2]].shape == (4,)
    same(proto, changed)


def test_a_product_without_a_sum_is_left_alone():
    step = node("MatMul", ["x", "w"], ["y"], name="layer")
    proto = build([step], {"x": [2, 3]}, {"y": None}, {"w": normal(3, 4)})
    assert given(proto)[0] == 0
