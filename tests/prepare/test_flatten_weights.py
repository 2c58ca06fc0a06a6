"""Weights with leading axes of one: the same product of a matrix, without reading the weight."""

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, info, node, normal, run, weight

from bitwright import graph
from bitwright.prepare import flatten_weights


def product(shape, leading, opset=17):
    rank = max(len(shape), leading + 2) - (len(shape) == 1)
    w = weight(8, 5).reshape(*[1] * leading, 8, 5)
    nodes = [node("MatMul", ["x", "w"], ["y"], name="p")]
    return build(nodes, {"x": shape}, [info("y", [None] * rank)], {"w": w}, opset=opset)


@pytest.mark.parametrize("leading", [1, 2])
@pytest.mark.parametrize("shape", [[8], [3, 8], [2, 3, 8], [4, 2, 3, 8]])
def test_the_product_stays_the_same(shape, leading):
    model = product(shape, leading)
    work = graph.load_model(model)
    assert flatten_weights(work).changed == 1
    graph.check_model(work)
    x = normal(*shape)
    for wanted, found in zip(run(model, {"x": x}), run(ir.to_proto(work), {"x": x}), strict=True):
        assert wanted.shape == found.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_weight_in_a_file_is_not_read(tmp_path):
    graph.save_model(graph.load_model(product([3, 8], 1)), tmp_path / "m.onnx", external_data=True)
    work = graph.load_model(tmp_path / "m.onnx")
    before = work.graph.initializers["w"].const_value
    if not isinstance(before, ir.ExternalTensor):  # too small to be stored outside
        before = ir.ExternalTensor(
            "m.onnx", 0, 160, ir.DataType.FLOAT, shape=ir.Shape([1, 8, 5]), name="w"
        )
        work.graph.initializers["w"].const_value = before
    flatten_weights(work)
    after = work.graph.initializers["w_matrix"].const_value
    assert isinstance(after, ir.ExternalTensor) and after.raw is None
    assert after.offset == before.offset and tuple(after.shape) == (8, 5)


def test_an_input_of_unknown_rank_or_a_real_batch_is_left_alone():
    unknown = product([3, 8], 1)
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    assert flatten_weights(graph.load_model(unknown)).changed == 0
    nodes = [node("MatMul", ["x", "w"], ["y"], name="p")]
    batch = build(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 5]}, {"w": weight(2, 8, 5)})
    assert flatten_weights(graph.load_model(batch)).changed == 0


def test_a_weight_that_others_read_keeps_its_axes_for_them():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="p"),
        node("ReduceSum", ["w"], ["b"], name="sum", keepdims=0),
        node("Mul", ["a", "b"], ["y"], name="mul"),
    ]
    w = weight(8, 5).reshape(1, 8, 5)
    model = build(nodes, {"x": [2, 3, 8]}, {"y": [2, 3, 5]}, {"w": w})
    work = graph.load_model(model)
    assert flatten_weights(work).changed == 1
    x = normal(2, 3, 8)
    np.testing.assert_allclose(run(ir.to_proto(work), {"x": x}), run(model, {"x": x}), rtol=1e-5)
