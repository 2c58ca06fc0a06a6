"""Scales, zero points and stored integers, as any node of a graph has them."""

import numpy as np
import onnx_ir as ir
import pytest

from bitwright.graph.quantizers import (
    Quantizer,
    Quantizers,
    position_of,
    stored_weight,
)


def constant(name, array):
    return ir.Value(name=name, const_value=ir.tensor(np.asarray(array)), type=None)


W = np.array([[1, 2], [3, 4]], np.int8)


def test_several_scales_belong_to_the_axis_that_the_node_names():
    inputs = [constant("w", W), constant("s", np.float32([1, 10])), None]
    for axis, wanted in ((0, [[1, 2], [30, 40]]), (1, [[1, 20], [3, 40]])):
        found = stored_weight(ir.node("DequantizeLinear", inputs, {"axis": axis}))
        assert np.array_equal(found.numbers(), wanted)


def test_scales_of_blocks_are_repeated():
    scales = constant("s", np.float32([[1, 2], [3, 4]]))
    blocked = {"axis": 0, "block_size": 2}
    node = ir.node("DequantizeLinear", [constant("w", np.ones((4, 2), np.int8)), scales], blocked)
    assert np.array_equal(stored_weight(node).numbers(), [[1, 2], [1, 2], [3, 4], [3, 4]])


@pytest.mark.parametrize(
    ("op", "attributes", "wanted"),
    [
        ("QLinearConv", {}, [[1, 2], [30, 40]]),
        ("QLinearMatMul", {}, [[1, 20], [3, 40]]),
        ("QGemm", {}, [[1, 20], [3, 40]]),
        ("QGemm", {"transB": 1}, [[1, 2], [30, 40]]),
    ],
)
def test_integer_ops_have_scales_for_their_output_channels(op, attributes, wanted):
    x, s, z = (ir.Value(name=name) for name in "xsz")
    w = constant("w", W)
    scale, zero = constant("ws", np.float32([1, 10])), constant("wz", np.int8([0, 0]))
    found = stored_weight(ir.node(op, [x, s, z, w, scale, zero], attributes))
    assert found.values is w and np.array_equal(found.numbers(), wanted)


def test_what_is_computed_at_run_time_has_no_numbers():
    computed = ir.Value(name="computed")
    scale, zero = constant("s", np.float32(0.5)), constant("z", np.uint8(3))
    assert stored_weight(ir.node("DequantizeLinear", [computed, scale])) is None
    assert stored_weight(ir.node("Conv", [computed, constant("w", W)])) is None
    node = ir.node("DequantizeLinear", [computed, scale])
    assert Quantizer(node, computed, computed, None).constants() is None
    assert Quantizer(node, computed, scale, computed).constants() is None
    known = Quantizer(node, computed, scale, zero).constants()
    assert [array.tolist() for array in known] == [0.5, 3]


def test_a_quantizer_knows_the_type_that_its_zero_point_has():
    x = ir.val("x", ir.DataType.FLOAT, [2])
    scale = ir.val("s", const_value=ir.tensor(np.float32(0.5), name="s"))
    zero = ir.val("z", const_value=ir.tensor(np.int16(0), name="z"))
    node = ir.node("QuantizeLinear", [x, scale, zero])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[scale, zero], name="g")
    (found,) = Quantizers(ir.Model(graph, ir_version=10)).found.values()
    assert found.stored_type == ir.DataType.INT16 and float(found.scale) == 0.5


def test_the_position_of_a_scale_is_the_nearest_power_of_two():
    assert [position_of(s) for s in (1.0, 0.25, 2.0, -1.0, float("nan"))] == [0, 2, -1, None, None]
