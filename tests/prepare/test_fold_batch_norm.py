"""Folding batch norms leaves every output as it was, and refuses where it would not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference
from support.models import run_plain

from bitwright.prepare import fold_batch_norm

RNG = np.random.default_rng(7)
C = 6


def build(nodes, shape, arrays, *, opset=17, outputs=("y",), dtype=np.float32):
    initializers = [
        numpy_helper.from_array(np.asarray(array).astype(dtype), name)
        for name, array in arrays.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return shape_inference.infer_shapes(model)


def norm(x="t", y="y", **attributes):
    return helper.make_node(
        "BatchNormalization", [x, "gamma", "beta", "mean", "var"], [y], **attributes
    )


def norm_arrays(channels=C):
    return {
        "gamma": RNG.normal(1, 0.5, channels),
        "beta": RNG.normal(size=channels),
        "mean": RNG.normal(size=channels),
        "var": RNG.uniform(0.1, 2, channels),
    }


def assert_folds(proto, x, count=1):
    """Fold, and prove equality in ONNX Runtime; return the folded model."""
    expected = run_plain(proto, {"x": x})
    model = ir.from_proto(proto)
    assert fold_batch_norm(model).changed == count
    folded = ir.to_proto(model)
    checker.check_model(folded, full_check=True)
    assert [o.name for o in folded.graph.output] == [o.name for o in proto.graph.output]
    for a, b in zip(expected, run_plain(folded, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return folded


def assert_refuses(proto):
    model = ir.from_proto(proto)
    assert fold_batch_norm(model).changed == 0
    assert ir.to_proto(model).graph == ir.to_proto(ir.from_proto(proto)).graph


def image(channels=4):
    return RNG.normal(size=(2, channels, 5, 5)).astype(np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_conv(bias, group, epsilon):
    arrays = {"w": RNG.normal(size=(C, 4 // group, 3, 3)), **norm_arrays()}
    if bias:
        arrays["b"] = RNG.normal(size=C)
    nodes = [
        helper.make_node("Conv", ["x", "w"] + ["b"] * bias, ["t"], group=group),
        norm(epsilon=epsilon),
    ]
    folded = assert_folds(build(nodes, [2, 4, 5, 5], arrays), image())
    assert [n.op_type for n in folded.graph.node] == ["Conv"]
    # The batch norm's own parameters are gone, the weight kept its name.
    assert {i.name for i in folded.graph.initializer} == {"w", "b" if bias else "w_bias"}


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_of_one_and_three_dimensions(rank):
    arrays = {"w": RNG.normal(size=(C, 4, *[3] * rank)), **norm_arrays()}
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), norm()]
    x = RNG.normal(size=(2, 4, *[5] * rank)).astype(np.float32)
    assert_folds(build(nodes, list(x.shape), arrays), x)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(bias, group):
    arrays = {"w": RNG.normal(size=(4, C // group, 2, 2)), **norm_arrays()}
    if bias:
        arrays["b"] = RNG.normal(size=C)
    nodes = [
        helper.make_node(
            "ConvTranspose", ["x", "w"] + ["b"] * bias, ["t"], group=group, strides=[2, 2]
        ),
        norm(),
    ]
    assert_folds(build(nodes, [2, 4, 5, 5], arrays), image())


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (1,), (C,), (1, C)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
def test_gemm(trans_b, c, alpha, beta):
    arrays = {"w": RNG.normal(size=(C, 4) if trans_b else (4, C)), **norm_arrays()}
    if c is not None:
        arrays["c"] = RNG.normal(size=c)
    nodes = [
        helper.make_node(
            "Gemm", ["x", "w"] + ["c"] * (c is not None), ["t"],
            transB=trans_b, alpha=alpha, beta=beta,
        ),
        norm(),
    ]  # fmt: skip
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    assert_folds(build(nodes, [3, 4], arrays), x)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias_shape", [(1, C, 1, 1), (C, 1, 1), (), (1,)])
@pytest.mark.parametrize("bias_first", [False, True])
@pytest.mark.parametrize("own_bias", [False, True])
def test_an_added_bias_between_goes_into_the_node(op, bias_shape, bias_first, own_bias):
    shape = (C, 4, 3, 3) if op == "Conv" else (4, C, 3, 3)
    arrays = {"w": RNG.normal(size=shape), "a": RNG.normal(size=bias_shape), **norm_arrays()}
    if own_bias:
        arrays["b"] = RNG.normal(size=C)
    nodes = [
        helper.make_node(op, ["x", "w"] + ["b"] * own_bias, ["t0"]),
        helper.make_node("Add", ["a", "t0"] if bias_first else ["t0", "a"], ["t"]),
        norm(),
    ]
    folded = assert_folds(build(nodes, [2, 4, 5, 5], arrays), image())
    assert [n.op_type for n in folded.graph.node] == [op]
    assert "a" not in {i.name for i in folded.graph.initializer}


@pytest.mark.parametrize("bias_first", [False, True])
def test_matmul_with_an_added_bias_keeps_the_addition(bias_first):
    arrays = {"w": RNG.normal(size=(4, C)), "a": RNG.normal(size=C), **norm_arrays()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t0"]),
        helper.make_node("Add", ["a", "t0"] if bias_first else ["t0", "a"], ["t"]),
        norm(),
    ]
    proto = build(nodes, [3, 4], arrays)
    folded = assert_folds(proto, RNG.normal(size=(3, 4)).astype(np.float32))
    assert [n.op_type for n in folded.graph.node] == ["MatMul", "Add"]


def test_a_shared_weight_is_copied_not_changed():
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)), **norm_arrays()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        norm(),
        helper.make_node("Conv", ["x", "w"], ["z"]),
    ]
    assert_folds(build(nodes, [2, 4, 5, 5], arrays, outputs=("y", "z")), image())


def test_two_batch_norms_in_a_row_both_fold():
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)), **norm_arrays()}
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), norm("t", "u"), norm("u", "y")]
    assert_folds(build(nodes, [2, 4, 5, 5], arrays), image(), count=2)


def test_shared_batch_norm_parameters_stay_for_the_other_reader():
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)), **norm_arrays()}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        norm("t", "u"),
        helper.make_node("Add", ["u", "u"], ["v"]),
        norm("v", "y"),
    ]
    assert_folds(build(nodes, [2, 4, 5, 5], arrays), image())


def test_weights_in_constant_nodes_fold_too():
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)).astype(np.float32), **norm_arrays()}
    constants = [
        helper.make_node(
            "Constant", [], [k], value=numpy_helper.from_array(np.asarray(v, np.float32))
        )
        for k, v in arrays.items()
    ]
    nodes = [*constants, helper.make_node("Conv", ["x", "w"], ["t"]), norm()]
    assert_folds(build(nodes, [2, 4, 5, 5], {}), image())


@pytest.mark.parametrize(
    "case",
    ["output", "two readers", "computed weight", "training", "old training", "wrong shape",
     "old opset", "relu", "spatial bias", "overridable"],
)  # fmt: skip
def test_it_refuses_where_folding_would_change_the_result(case):
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)), **norm_arrays()}
    conv = helper.make_node("Conv", ["x", "w"], ["t"])
    nodes, outputs, opset = [conv, norm()], ("y",), 17
    if case == "output":
        outputs = ("y", "t")
    elif case == "two readers":
        nodes, outputs = [conv, norm(), helper.make_node("Relu", ["t"], ["z"])], ("y", "z")
    elif case == "computed weight":
        arrays["w0"] = arrays.pop("w")
        nodes = [helper.make_node("Abs", ["w0"], ["w"]), *nodes]
    elif case == "training":
        nodes = [conv, norm(training_mode=1)]
        nodes[1].output.extend(["m", "v"])
    elif case == "old training":
        nodes, opset = [conv, norm()], 13
        nodes[1].output.extend(["m", "v", "sm", "sv"])
    elif case == "wrong shape":
        arrays["w"] = RNG.normal(size=(C + 1, 4, 1, 1))
    elif case == "old opset":
        opset = 6
    elif case == "relu":
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["t0"]),
            helper.make_node("Relu", ["t0"], ["t"]),
            norm(),
        ]
    elif case == "spatial bias":
        arrays["a"] = RNG.normal(size=(1, C, 5, 5))
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["t0"]),
            helper.make_node("Add", ["t0", "a"], ["t"]),
            norm(),
        ]
    proto = build(nodes, [2, 4, 5, 5], arrays, outputs=outputs, opset=opset)
    if case == "overridable":
        proto.graph.input.append(helper.make_tensor_value_info("gamma", TensorProto.FLOAT, [C]))
    assert_refuses(proto)


def test_float16_weights_that_would_overflow_stay():
    arrays = {"w": np.full((C, 4, 1, 1), 60000.0), **norm_arrays()}
    arrays["gamma"] = np.full(C, 100.0)
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), norm()]
    assert_refuses(build(nodes, [2, 4, 5, 5], arrays, dtype=np.float16))


def test_a_batch_norm_inside_an_if_branch_folds():
    arrays = {"w": RNG.normal(size=(C, 4, 1, 1)), **norm_arrays()}

    def branch(name, nodes):
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out])

    then = branch("then", [helper.make_node("Conv", ["x", "w"], ["t"]), norm("t", "a")])
    other = branch("else", [helper.make_node("Conv", ["x", "w"], ["b"])])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    proto = build(nodes, [2, 4, 5, 5], arrays)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    assert_folds(proto, image())
