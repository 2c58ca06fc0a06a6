"""Hard swish and hard sigmoid, however written, become HardSigmoid and compute the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

from bitwright.prepare import fuse_hard_swish

NUMBERS = {"three": 3.0, "six": 6.0, "sixth": 1 / 6, "zero": 0.0, "two": 2.0}


def build(nodes, *, opset=17, outputs=("y",), dtype=np.float32, shape=(), rank=2):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    limits = {"lower": np.asarray(0, dtype), "upper": np.asarray(6, dtype)}
    arrays = {k: np.full(shape, v, dtype) for k, v in NUMBERS.items()} | limits
    used = {name for n in nodes for name in n.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [64] * rank)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(v, k) for k, v in arrays.items() if k in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return shape_inference.infer_shapes(model)


def node(op, *inputs, to="y", **attributes):
    return helper.make_node(op, list(inputs), [to], **attributes)


def clip(to="c", opset=17):
    if opset < 11:
        return node("Clip", "a", to=to, min=0.0, max=6.0)
    return node("Clip", "a", "lower", "upper", to=to)


def run(proto, x):
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def assert_fuses(proto, kinds):
    model = ir.from_proto(proto)
    assert fuse_hard_swish(model).changed == 1
    fused = ir.to_proto(model)
    checker.check_model(fused, full_check=True)
    assert [n.op_type for n in fused.graph.node] == kinds
    assert [o.name for o in fused.graph.output] == [o.name for o in proto.graph.output]
    read = {name for n in fused.graph.node for name in n.input}
    assert {i.name for i in fused.graph.initializer} <= read
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.linspace(-5, 5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for a, b in zip(run(proto, x), run(fused, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def assert_refuses(proto):
    model = ir.from_proto(proto)
    assert fuse_hard_swish(model).changed == 0
    assert ir.to_proto(model).graph == ir.to_proto(ir.from_proto(proto)).graph


def divide(value, by_product, to="y"):
    return node("Mul", "sixth", value, to=to) if by_product else node("Div", value, "six", to=to)


def swapped(swap, *pair):
    return pair[::-1] if swap else pair


@pytest.mark.parametrize("by_product", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("opset", [9, 11, 13, 21])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_division_behind_the_product(by_product, swap, opset, shape):
    nodes = [
        node("Add", *swapped(swap, "x", "three"), to="a"),
        clip(opset=opset),
        node("Mul", *swapped(swap, "c", "x"), to="m"),
        divide("m", by_product),
    ]
    assert_fuses(build(nodes, opset=opset, shape=shape), ["HardSigmoid", "Mul"])


@pytest.mark.parametrize("by_product", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_the_division_behind_the_clip(by_product, swap):
    nodes = [
        node("Add", "x", "three", to="a"),
        clip(),
        divide("c", by_product, to="d"),
        node("Mul", *swapped(swap, "x", "d")),
    ]
    assert_fuses(build(nodes), ["HardSigmoid", "Mul"])


@pytest.mark.parametrize("by_product", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_the_division_of_x(by_product, swap):
    nodes = [
        divide("x", by_product, to="d"),
        node("Add", "x", "three", to="a"),
        clip(),
        node("Mul", *swapped(swap, "d", "c")),
    ]
    assert_fuses(build(nodes), ["HardSigmoid", "Mul"])


@pytest.mark.parametrize("by_product", [False, True])
def test_a_hard_sigmoid_alone(by_product):
    nodes = [node("Add", "x", "three", to="a"), clip(), divide("c", by_product)]
    assert_fuses(build(nodes), ["HardSigmoid"])


@pytest.mark.parametrize(
    "case",
    ["sum read", "clip read", "product read", "clip output", "product output", "other offset",
     "other limits", "one limit", "other divisor", "no divisor", "inverse", "other factor",
     "float64", "rank", "computed", "old opset"],
)  # fmt: skip
def test_it_refuses_what_is_something_else_or_read_elsewhere(case):
    add, product, last = (
        node("Add", "x", "three", to="a"),
        node("Mul", "x", "c", to="m"),
        node("Div", "m", "six"),
    )
    nodes, outputs, options = [add, clip(), product, last], ("y",), {}
    match case:
        case "sum read" | "clip read" | "product read":
            tensor = {"s": "a", "c": "c", "p": "m"}[case[0]]
            nodes, outputs = [*nodes, node("Neg", tensor, to="z")], ("y", "z")
        case "clip output":
            outputs = ("y", "c")
        case "product output":
            outputs = ("y", "m")
        case "other offset":
            nodes[0] = node("Add", "x", "two", to="a")
        case "other limits":
            nodes[1] = node("Clip", "a", "lower", "two", to="c")
        case "one limit":
            nodes[1] = node("Clip", "a", "", "upper", to="c")
        case "other divisor":
            nodes[3] = node("Div", "m", "three")
        case "no divisor":
            nodes[3] = node("Neg", "m")
        case "inverse":
            nodes[3] = node("Div", "six", "m")
        case "other factor":
            nodes = [node("Neg", "x", to="n"), add, clip(), node("Mul", "n", "c", to="m"), last]
        case "float64":
            options = {"dtype": np.float64}
        case "rank":
            options = {"shape": (1, 1, 1)}
        case "computed":
            nodes = [node("Abs", "six", to="s"), *nodes[:3], node("Div", "m", "s")]
        case "old opset":
            options = {"opset": 6}
            nodes[1] = clip(opset=6)
    assert_refuses(build(nodes, outputs=outputs, **options))


def test_the_pieces_keep_the_names_that_the_user_knows():
    nodes = [node("Add", "x", "three", to="a"), clip(), node("Mul", "x", "c", to="m")]
    nodes += [divide("m", False)]
    for i, n in enumerate(nodes):
        n.name = f"node{i}"
    model = ir.from_proto(build(nodes))
    fuse_hard_swish(model)
    assert [(n.name, n.outputs[0].name) for n in model.graph] == [
        ("node1", "c_hard_sigmoid"),
        ("node2", "y"),
    ]


def test_one_inside_an_if_branch_fuses():
    def branch(name, nodes):
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out])

    body = [node("Add", "x", "three", to="a"), clip(), divide("c", False, to="d")]
    branches = {
        "then_branch": branch("then", body),
        "else_branch": branch("else", [node("Neg", "x", to="e")]),
    }
    proto = build([node("If", "flag", **branches)])
    for name in ("three", "six", "lower", "upper"):
        value = {"lower": 0.0, "upper": 6.0, **NUMBERS}[name]
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    model = ir.from_proto(proto)
    assert fuse_hard_swish(model).changed == 1
    x = np.linspace(-5, 5, 64 * 64, dtype=np.float32).reshape(64, 64)
    np.testing.assert_allclose(
        run(proto, x)[0], run(ir.to_proto(model), x)[0], rtol=1e-5, atol=1e-6
    )
