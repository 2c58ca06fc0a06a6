"""Nodes that change nothing go, and no name, shape or type that a caller sees changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

from bitwright.prepare import drop_no_ops

RNG = np.random.default_rng(13)
NEUTRAL = {"Mul": 1, "Div": 1, "Add": 0, "Sub": 0, "Pow": 1}


def build(nodes, shape, arrays, *, opset=17, outputs=("y",), kind=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return shape_inference.infer_shapes(model)


def run(proto, x):
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def assert_left(proto, kinds):
    model = ir.from_proto(proto)
    assert drop_no_ops(model).changed == len(proto.graph.node) - len(kinds)
    left = ir.to_proto(model)
    checker.check_model(left, full_check=True)
    assert [n.op_type for n in left.graph.node] == kinds
    assert [i.name for i in left.graph.input] == [i.name for i in proto.graph.input]
    assert [o.name for o in left.graph.output] == [o.name for o in proto.graph.output]
    read = {name for n in left.graph.node for name in n.input}
    assert {i.name for i in left.graph.initializer} <= read
    kind = helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = (10 * RNG.normal(size=shape)).astype(kind)
    for a, b in zip(run(proto, x), run(left, x), strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)
    return left


def node(op, *inputs, to="y", **attributes):
    return helper.make_node(op, list(inputs), [to], **attributes)


@pytest.mark.parametrize("op", NEUTRAL)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_neutral_constant_changes_nothing(op, shape, where):
    arrays = {"c": np.full(shape, NEUTRAL[op], np.float32)}
    nodes = {
        "first": [node(op, "x", "c", to="t"), node("Exp", "t")],
        "middle": [node("Exp", "x", to="t"), node(op, "t", "c", to="u"), node("Neg", "u")],
        "last": [node("Exp", "x", to="t"), node(op, "t", "c")],
    }[where]
    assert_left(build(nodes, [2, 3], arrays), [n.op_type for n in nodes if n.op_type != op])


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_the_constant_may_come_first(op):
    nodes = [node(op, "c", "x", to="t"), node("Exp", "t")]
    assert_left(build(nodes, [2, 3], {"c": np.float32(NEUTRAL[op])}), ["Exp"])


@pytest.mark.parametrize("op", ["Div", "Sub", "Pow"])
def test_the_order_matters_where_the_operator_says_so(op):
    nodes = [node(op, "c", "x", to="t"), node("Neg", "t")]
    assert_left(build(nodes, [2, 3], {"c": np.float32(NEUTRAL[op])}), [op, "Neg"])


@pytest.mark.parametrize("op", NEUTRAL)
@pytest.mark.parametrize("off", [1e-7, 1.0])
def test_any_other_constant_stays(op, off):
    constant = np.float32(NEUTRAL[op]) + np.float32(max(off, 2e-7))
    nodes = [node("Exp", "x", to="t"), node(op, "t", "c")]
    assert_left(build(nodes, [2, 3], {"c": constant}), ["Exp", op])


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3), (3,), (0,)])
def test_a_constant_that_could_change_the_shape_stays(shape):
    nodes = [node("Relu", "x", to="t"), node("Mul", "t", "c", to="u"), node("Exp", "u")]
    proto = build(nodes, [1, 1] if shape == (0,) else [2, 3], {"c": np.ones(shape, np.float32)})
    assert_left(proto, ["Relu", "Mul", "Exp"])


def test_integers_too():
    nodes = [
        node("Mul", "x", "one", to="t"),
        node("Add", "t", "zero", to="u"),
        node("Neg", "u"),
    ]
    arrays = {"one": np.int64(1), "zero": np.int64([0])}
    assert_left(build(nodes, [4], arrays, kind=TensorProto.INT64), ["Neg"])


def test_the_exponent_may_have_another_type():
    nodes = [node("Pow", "x", "one", to="t"), node("Exp", "t")]
    assert_left(build(nodes, [4], {"one": np.int64(1)}), ["Exp"])


def test_between_an_input_and_an_output_it_stays():
    assert_left(build([node("Mul", "x", "c")], [4], {"c": np.float32(1)}), ["Mul"])


def test_a_tensor_returned_under_two_names_keeps_both():
    nodes = [node("Exp", "x", to="z"), node("Mul", "z", "c"), node("Identity", "z", to="w")]
    proto = build(nodes, [4], {"c": np.float32(1)}, outputs=("y", "z", "w"))
    assert_left(proto, ["Exp", "Mul", "Identity"])


def test_other_readers_follow_an_output_that_changes_its_writer():
    nodes = [node("Exp", "x", to="t"), node("Mul", "t", "c"), node("Neg", "t", to="z")]
    left = assert_left(build(nodes, [4], {"c": np.float32(1)}, outputs=("y", "z")), ["Exp", "Neg"])
    assert left.graph.node[1].input[0] == "y"


def test_identity_goes():
    nodes = [node("Identity", "x", to="t"), node("Exp", "t", to="u"), node("Identity", "u")]
    assert_left(build(nodes, [4], {}), ["Exp"])


def test_a_constant_that_a_caller_may_override_stays():
    nodes = [node("Exp", "x", to="t"), node("Mul", "t", "c")]
    proto = build(nodes, [4], {"c": np.float32(1)})
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, []))
    model = ir.from_proto(proto)
    assert drop_no_ops(model).changed == 0


def test_a_computed_constant_stays():
    nodes = [node("Abs", "c0", to="c"), node("Exp", "x", to="t"), node("Mul", "t", "c")]
    assert_left(build(nodes, [4], {"c0": np.float32(1)}), ["Abs", "Exp", "Mul"])


@pytest.mark.parametrize(("rank", "kinds"), [(1, ["MatMul", "Neg"]), (2, ["MatMul", "Mul", "Neg"])])
def test_the_rank_is_found_without_shape_inference(rank, kinds):
    nodes = [node("MatMul", "x", "w", to="t"), node("Mul", "t", "c", to="u"), node("Neg", "u")]
    arrays = {"w": np.eye(4, dtype=np.float32), "c": np.ones((1,) * rank, np.float32)}
    proto = build(nodes, [3, 4], arrays)
    model = ir.from_proto(proto)
    for value in [*model.graph.inputs, *(n.outputs[0] for n in model.graph)]:
        value.shape = None
    drop_no_ops(model)
    assert [n.op_type for n in model.graph] == kinds


MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "stays"),
    [
        ([0], [MAX], [1], [1], False),
        ([0, 0], [2, 2**31 - 1], None, None, False),
        ([0], [3], [-1], None, False),
        ([0], [2], [1], None, True),
        ([1], [MAX], [1], None, True),
        ([-3], [MAX], [1], None, True),
        ([0], [-1], [1], None, True),
        ([0], [MAX], [1], [2], True),
        ([0, 0], [2, 2], [0, 1], [1, 1], True),
    ],
)
def test_a_slice_of_everything_goes(starts, ends, axes, steps, stays):
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    names = [name if value else "" for name, value in given.items()]
    while not names[-1]:
        names.pop()
    nodes = [node("Exp", "x", to="t"), node("Slice", "t", *names, to="u"), node("Neg", "u")]
    proto = build(nodes, [2, 3], {k: np.array(v) for k, v in given.items() if v})
    assert_left(proto, ["Exp", "Slice", "Neg"] if stays else ["Exp", "Neg"])


@pytest.mark.parametrize(("end", "stays"), [(2**31 - 1, False), (3, True)])
def test_only_the_largest_end_is_behind_an_axis_of_unknown_size(end, stays):
    nodes = [node("Exp", "x", to="t"), node("Slice", "t", "zero", "end", to="u"), node("Neg", "u")]
    proto = build(nodes, ["n"], {"zero": np.array([0]), "end": np.array([end])})
    model = ir.from_proto(proto)
    assert drop_no_ops(model).changed == (not stays)


def test_a_slice_up_to_a_computed_end_stays():
    nodes = [
        node("Abs", "e", to="end"), node("Exp", "x", to="t"),
        node("Slice", "t", "zero", "end", to="u"), node("Neg", "u"),
    ]  # fmt: skip
    proto = build(nodes, [3], {"zero": np.array([0]), "e": np.array([2])})
    assert_left(proto, ["Abs", "Exp", "Slice", "Neg"])
