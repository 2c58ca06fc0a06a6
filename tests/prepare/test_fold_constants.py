"""Constant folding changes no output, keeps names and stays within memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper

from bitwright.errors import ModelError
from bitwright.graph import infer_shapes
from bitwright.prepare import fold_constants
from bitwright.prepare.fold_constants import _SIMPLIFIED

RNG = np.random.default_rng(5)


def build(nodes, shape, arrays, outputs=("y",), opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run(proto, x):
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def assert_same(proto, x, removed):
    model = ir.from_proto(proto)
    assert fold_constants(model).changed == removed
    folded = ir.to_proto(model)
    checker.check_model(folded)
    assert [o.name for o in folded.graph.output] == [o.name for o in proto.graph.output]
    assert [i.name for i in folded.graph.input] == [i.name for i in proto.graph.input]
    for a, b in zip(run(proto, x), run(folded, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return folded


def vector(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def kinds(proto):
    return [node.op_type for node in proto.graph.node]


def test_a_transposed_and_scaled_weight_becomes_an_initializer():
    nodes = [
        helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        helper.make_node("Mul", ["wt", "s"], ["ws"]),
        helper.make_node("MatMul", ["x", "ws"], ["y"]),
    ]
    proto = build(nodes, ["n", 300], {"w": vector(200, 300), "s": np.float32([3.0])})
    folded = assert_same(proto, vector(2, 300), removed=2)
    assert kinds(folded) == ["MatMul"]
    assert [i.name for i in folded.graph.initializer] == ["ws"]


def test_identity_and_dropout_go_and_the_output_keeps_its_name():
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Dropout", ["b"], ["c"]),
        helper.make_node("Identity", ["c"], ["y"]),
    ]
    folded = assert_same(build(nodes, ["n", 4], {}), vector(3, 4), removed=3)
    assert kinds(folded) == ["Relu"]


def test_a_tensor_returned_under_two_names_keeps_both():
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Identity", ["y"], ["z"]),
        helper.make_node("Identity", ["x"], ["w"]),
    ]
    assert_same(build(nodes, ["n", 4], {}, ("y", "z", "w")), vector(3, 4), removed=0)


def test_a_constant_output_stays():
    nodes = [
        helper.make_node("Neg", ["k"], ["z"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    proto = build(nodes, ["n", 4], {"k": vector(4)}, ("y", "z"))
    model = ir.from_proto(proto)
    fold_constants(model)
    x = vector(2, 4)
    for a, b in zip(run(proto, x), run(ir.to_proto(model), x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_repeated_nodes_are_computed_once_and_unread_ones_never():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Exp", ["x"], ["unread"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    assert kinds(assert_same(build(nodes, [4], {}), vector(4), removed=2)) == ["Relu", "Add"]


def test_names_of_computed_tensors_stay():
    nodes = [
        helper.make_node("Neg", ["k"], ["kk"]),
        helper.make_node("Add", ["x", "kk"], ["first"]),
        helper.make_node("Relu", ["first"], ["second"]),
        helper.make_node("Exp", ["second"], ["y"]),
    ]
    folded = assert_same(build(nodes, [4], {"k": vector(4)}), vector(4), removed=1)
    assert [node.output[0] for node in folded.graph.node] == ["first", "second", "y"]


def test_a_quantized_weight_stays_quantized():
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    arrays = {"q": np.ones((4, 4), np.int8), "s": np.float32(0.5)}
    folded = assert_same(build(nodes, ["n", 4], arrays), vector(2, 4), removed=0)
    assert kinds(folded) == ["DequantizeLinear", "MatMul"]


def test_a_huge_expansion_is_left_to_the_runtime():
    nodes = [
        helper.make_node("Expand", ["one", "shape"], ["big"]),
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["zero"]),
        helper.make_node("Add", ["x", "zero"], ["y"]),
        helper.make_node("ReduceSum", ["big"], ["z"]),
    ]
    arrays = {"one": np.float32([1.0]), "shape": np.int64([2**14, 2**13])}
    model = ir.from_proto(build(nodes, ["n", 4], arrays, ("y", "z")))
    tracemalloc.start()
    try:
        fold_constants(model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6  # the expansion alone would be 512 MB
    assert "Expand" in {node.op_type for node in model.graph}


@pytest.mark.parametrize("any_size", ["?", -1])
def test_dimensions_that_mean_any_size_are_not_taken_for_a_size(any_size):
    # Both dimensions carry one name but differ: reshaping to the transposed shape is no identity.
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["s1"]),
        helper.make_node("Gather", ["s", "zero"], ["s0"]),
        helper.make_node("Concat", ["s1", "s0"], ["swapped"], axis=0),
        helper.make_node("Reshape", ["x", "swapped"], ["y"]),
    ]
    arrays = {"one": np.int64([1]), "zero": np.int64([0])}
    proto = build(nodes, [any_size, any_size], arrays)
    model = ir.from_proto(proto)
    fold_constants(model)
    x = vector(2, 3)
    assert run(ir.to_proto(model), x)[0].shape == run(proto, x)[0].shape == (3, 2)


class Unreadable(ir.Tensor):
    """A weight that must not be read: it stands for gigabytes in an external file."""

    def numpy(self):
        raise AssertionError("a weight was read")

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("a weight was read")


def test_weights_that_need_no_folding_are_not_read():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    model = ir.from_proto(build(nodes, ["n", 64], {"w": vector(64, 64)}))
    model.graph.initializers["w"].const_value = Unreadable(vector(64, 64), name="w")
    assert fold_constants(model).changed == 0


def test_a_failure_of_the_optimizer_is_one_sentence(monkeypatch):
    import onnxscript.optimizer

    def fail(*_args, **_options):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(onnxscript.optimizer, "fold_constants_ir", fail)
    model = ir.from_proto(build([helper.make_node("Relu", ["x"], ["y"])], [4], {}))
    with pytest.raises(ModelError, match=r"no such thing.*optimize=False"):
        fold_constants(model)


def refuse_to_fold(monkeypatch):
    import onnxscript.optimizer

    def fail(*_args, **_options):
        raise AssertionError("the optimizer was asked")

    monkeypatch.setattr(onnxscript.optimizer, "fold_constants_ir", fail)


def test_the_optimizer_is_not_asked_where_it_would_find_nothing(monkeypatch):
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("Relu", ["t"], ["again"]),
        helper.make_node("Add", ["u", "again"], ["y"]),
    ]
    model = ir.from_proto(build(nodes, ["n", 64], {"w": vector(64, 64)}))
    infer_shapes(model)
    refuse_to_fold(monkeypatch)
    assert fold_constants(model).changed == 1


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Identity", ["x"], ["t"]),
        helper.make_node("Add", ["c", "c"], ["t"]),
        helper.make_node("Reshape", ["x", "size"], ["t"]),
        helper.make_node("Custom", ["x"], ["t"], domain="com.example"),  # its shape is not known
    ],
    ids=lambda node: node.op_type,
)
def test_the_optimizer_is_asked_where_it_may_find_something(node, monkeypatch):
    arrays = {"c": vector(4, 4), "size": np.array([4, 4])}
    proto = build([node, helper.make_node("Add", ["x", "t"], ["y"])], [4, 4], arrays)
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    model = ir.from_proto(proto)
    infer_shapes(model)
    refuse_to_fold(monkeypatch)
    with pytest.raises(ModelError, match="was asked"):
        fold_constants(model)


def test_every_rule_of_the_optimizer_is_known():
    from onnxscript.optimizer._constant_folding import registry

    ruled = {op for domain, op in registry.op_evaluators if not domain}
    assert ruled - {"Abs", "Add", "Gather", "Squeeze"} == _SIMPLIFIED


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("GatherND", {"a": vector(1, 4, 1, 1), "i": np.zeros(1, np.int64)}, {"batch_dims": 1}),
        ("MaxPool", {"a": vector(1, 2, 1, 4)}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("ReduceL2", {"a": vector(1, 8)}, {"axes": [1], "keepdims": 3}),
        ("GlobalMaxPool", {"a": vector(2, 6, 16)}, {}),
    ],
)
def test_what_the_runtime_takes_beyond_the_standard_keeps_its_shape(op, arrays, attributes):
    nodes = [
        helper.make_node(op, list(arrays), ["y"], **attributes),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    proto = build(nodes, [2], arrays, ["y", "z"])
    folded = assert_same(proto, vector(2), removed=0)
    assert [a.shape for a in run(proto, vector(2))] == [a.shape for a in run(folded, vector(2))]
