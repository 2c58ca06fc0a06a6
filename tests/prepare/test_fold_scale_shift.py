"""Scales and shifts go into the linear node beside them, and every output stays as it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference
from support.models import run_plain

from bitwright.prepare import fold_scale_shift

RNG = np.random.default_rng(11)
I, O = 4, 6  # noqa: E741
IMAGE = [2, I, 5, 5]


def build(nodes, shape, arrays, *, opset=17, outputs=("y",), dtype=np.float32, infer=True):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v).astype(dtype), k) for k, v in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return shape_inference.infer_shapes(model) if infer else model


def assert_folds(proto, kinds, count=None):
    """Fold, prove equality in ONNX Runtime, and compare the operators that are left."""
    shape = [d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = RNG.normal(size=shape).astype(np.float32)
    model = ir.from_proto(proto)
    expected_count = len(proto.graph.node) - len(kinds) if count is None else count
    assert fold_scale_shift(model).changed == expected_count
    folded = ir.to_proto(model)
    checker.check_model(folded, full_check=True)
    assert [n.op_type for n in folded.graph.node] == kinds
    assert [o.name for o in folded.graph.output] == [o.name for o in proto.graph.output]
    read = {name for node in folded.graph.node for name in node.input}
    assert {i.name for i in folded.graph.initializer} <= read
    for a, b in zip(run_plain(proto, {"x": x}), run_plain(folded, {"x": x}), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())
    return folded


def assert_refuses(proto):
    model = ir.from_proto(proto)
    assert fold_scale_shift(model).changed == 0
    assert ir.to_proto(model).graph == ir.to_proto(ir.from_proto(proto)).graph


def node(op, *inputs, to="y", **attributes):
    return helper.make_node(op, list(inputs), [to], **attributes)


def constant(*shape):
    """Numbers of both signs, none much larger than another."""
    return RNG.choice((-1.0, 1.0), shape) * RNG.uniform(0.6, 4.0, shape)


def weight(op, group=1, kernel=(3, 3)):
    shapes = {
        "Conv": (O, I // group, *kernel),
        "ConvTranspose": (I, O // group, *kernel),
        "Gemm": (I, O),
        "MatMul": (I, O),
    }
    return RNG.normal(size=shapes[op])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("behind", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1), (O, 1, 1), (1, O, 1, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_behind_a_convolution(op, behind, shape, bias):
    arrays = {"w": weight(op, 2), "c": constant(*shape)} | ({"b": constant(O)} if bias else {})
    nodes = [
        node(op, "x", "w", *["b"] * bias, to="t", group=2, pads=[1, 1, 1, 1]),
        node(behind, "t", "c"),
    ]
    folded = assert_folds(build(nodes, IMAGE, arrays), [op])
    has_bias = bias or behind in ("Add", "Sub")
    assert len(folded.graph.node[0].input) == 2 + has_bias  # a scale alone needs no bias


@pytest.mark.parametrize("behind", ["Mul", "Add", "Sub"])
def test_behind_with_the_constant_first(behind):
    arrays = {"w": weight("Conv"), "c": constant(O, 1, 1)}
    nodes = [node("Conv", "x", "w", to="t"), node(behind, "c", "t")]
    assert_folds(build(nodes, IMAGE, arrays), ["Conv"])


def test_a_chain_behind_goes_whole():
    arrays = {"w": weight("Conv"), "a": constant(1), "b": constant(O, 1, 1), "c": constant()}
    nodes = [
        node("Conv", "x", "w", to="t"),
        node("Mul", "a", "t", to="u"),
        node("Add", "u", "b", to="v"),
        node("Div", "v", "c", to="s"),
        node("Sub", "a", "s"),
    ]
    assert_folds(build(nodes, IMAGE, arrays), ["Conv"])


@pytest.mark.parametrize("behind", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("c", [None, (), (O,), (1, O)])
def test_behind_a_gemm(behind, transposed, c):
    arrays = {"w": weight("Gemm").T if transposed else weight("Gemm"), "k": constant(O)}
    arrays |= {} if c is None else {"b": constant(*c)}
    gemm = node(
        "Gemm", "x", "w", *["b"] * (c is not None), to="t", transB=transposed, alpha=0.5, beta=2.0
    )
    assert_folds(build([gemm, node(behind, "t", "k")], [3, I], arrays), ["Gemm"])


@pytest.mark.parametrize("shape", [(), (1,), (O,), (1, 1, O)])
def test_a_matmul_takes_a_scale(shape):
    nodes = [node("MatMul", "x", "w", to="t"), node("Mul", "t", "c")]
    arrays = {"w": weight("MatMul"), "c": constant(*shape)}
    assert_folds(build(nodes, [2, 3, I], arrays), ["MatMul"])


@pytest.mark.parametrize("behind", ["Mul", "Add", "Sub"])
@pytest.mark.parametrize("bias_first", [False, True])
def test_a_matmul_with_an_addition_takes_both(behind, bias_first):
    nodes = [
        node("MatMul", "x", "w", to="t"),
        node("Add", *(["b", "t"] if bias_first else ["t", "b"]), to="u"),
        node(behind, "u", "c"),
    ]
    arrays = {"w": weight("MatMul"), "b": constant(O), "c": constant(O)}
    assert_folds(build(nodes, [2, 3, I], arrays), ["MatMul", "Add"])


@pytest.mark.parametrize("behind", ["Add", "Sub"])
def test_a_matmul_alone_has_no_place_for_a_shift(behind):
    nodes = [node("MatMul", "x", "w", to="t"), node(behind, "t", "c")]
    assert_refuses(build(nodes, [2, 3, I], {"w": weight("MatMul"), "c": constant(O)}))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("before", ["Mul", "Div"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (I, 1, 1), (1, I, 1, 1)])
def test_a_scale_before_a_convolution(op, before, group, shape):
    nodes = [node(before, "x", "c", to="t"), node(op, "t", "w", group=group, pads=[1, 1, 1, 1])]
    arrays = {"w": weight(op, group), "c": constant(*shape)}
    folded = assert_folds(build(nodes, IMAGE, arrays), [op])
    assert list(folded.graph.node[0].input) == ["x", "w"]


@pytest.mark.parametrize("before", ["Add", "Sub"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("auto_pad", [None, "NOTSET", "VALID"])
def test_a_shift_before_an_unpadded_conv(before, first, group, auto_pad):
    nodes = [
        node(before, *(["c", "x"] if first else ["x", "c"]), to="t"),
        node("Conv", "t", "w", group=group, **({"auto_pad": auto_pad} if auto_pad else {})),
    ]
    arrays = {"w": weight("Conv", group), "c": constant(I, 1, 1)}
    assert_folds(build(nodes, IMAGE, arrays), ["Conv"])


@pytest.mark.parametrize("padding", [{"pads": [0, 1, 0, 0]}, {"auto_pad": "SAME_UPPER"}])
@pytest.mark.parametrize("before", ["Add", "Sub"])
def test_a_shift_before_a_padded_conv_stays(padding, before):
    nodes = [node(before, "x", "c", to="t"), node("Conv", "t", "w", **padding)]
    assert_refuses(build(nodes, IMAGE, {"w": weight("Conv"), "c": constant()}))


def test_a_shift_before_a_transposed_convolution_stays():
    nodes = [node("Add", "x", "c", to="t"), node("ConvTranspose", "t", "w")]
    assert_refuses(build(nodes, IMAGE, {"w": weight("ConvTranspose"), "c": constant()}))


@pytest.mark.parametrize("shift", ["Add", "Sub"])
@pytest.mark.parametrize("shapes", [((), ()), ((1,), (I, 1, 1)), ((I, 1, 1), (1,))])
def test_a_scale_moves_past_a_shift_that_padding_holds_back(shift, shapes):
    nodes = [
        node("Mul", "a", "x", to="t"),
        node(shift, "t", "c", to="u"),
        node("Conv", "u", "w", pads=[1, 1, 1, 1]),
    ]
    arrays = {"w": weight("Conv"), "a": constant(*shapes[0]), "c": constant(*shapes[1])}
    folded = assert_folds(build(nodes, IMAGE, arrays), [shift, "Conv"])
    assert folded.graph.node[0].output[0] == "u_unscaled"


def test_a_scale_by_zero_does_not_move_past_a_shift():
    nodes = [
        node("Mul", "x", "a", to="t"),
        node("Add", "t", "c", to="u"),
        node("Conv", "u", "w", pads=[1, 1, 1, 1]),
    ]
    assert_refuses(build(nodes, IMAGE, {"w": weight("Conv"), "a": np.zeros(()), "c": constant()}))


@pytest.mark.parametrize("before", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("scalar", [False, True])
def test_before_a_gemm(before, transposed, scalar):
    trans_a, trans_b = transposed
    shape = (1,) if scalar else (I, 1) if trans_a else (I,)
    arrays = {
        "w": weight("Gemm").T if trans_b else weight("Gemm"),
        "b": constant(O),
        "c": constant(*shape),
    }
    gemm = node("Gemm", "t", "w", "b", alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b)
    proto = build([node(before, "x", "c", to="t"), gemm], [I, 3] if trans_a else [3, I], arrays)
    assert_folds(proto, ["Gemm"])


@pytest.mark.parametrize("before", ["Mul", "Add"])
@pytest.mark.parametrize("shape", [(), (1,), (I,), (1, 1, I)])
def test_before_a_matmul_with_an_addition(before, shape):
    nodes = [
        node(before, "x", "c", to="t"),
        node("MatMul", "t", "w", to="u"),
        node("Add", "u", "b"),
    ]
    arrays = {"w": weight("MatMul"), "b": constant(O), "c": constant(*shape)}
    assert_folds(build(nodes, [2, 3, I], arrays), ["MatMul", "Add"])


def test_a_shift_before_a_matmul_alone_stays():
    nodes = [node("Add", "x", "c", to="t"), node("MatMul", "t", "w")]
    assert_refuses(build(nodes, [3, I], {"w": weight("MatMul"), "c": constant(I)}))


def test_a_shift_before_a_matmul_whose_addition_is_no_bias_stays():
    nodes = [
        node("Add", "x", "c", to="t"),
        node("MatMul", "t", "w", to="u"),
        node("Add", "u", "x"),
    ]
    assert_refuses(build(nodes, [3, I], {"w": RNG.normal(size=(I, I)), "c": constant(I)}))


def test_image_normalization_before_a_padded_conv_keeps_only_the_shift():
    nodes = [
        node("Sub", "x", "mean", to="t"),
        node("Div", "t", "std", to="u"),
        node("Conv", "u", "w", pads=[1, 1, 1, 1]),
    ]
    arrays = {"w": weight("Conv"), "mean": constant(1, I, 1, 1), "std": abs(constant(1, I, 1, 1))}
    assert_folds(build(nodes, IMAGE, arrays), ["Sub", "Conv"])


def test_unknown_shapes_still_fold_by_scalars():
    nodes = [
        node("Mul", "x", "a", to="t"),
        node("Conv", "t", "w", to="u"),
        node("Mul", "u", "a", to="v"),
        node("Relu", "v"),
    ]
    proto = build(nodes, IMAGE, {"w": weight("Conv"), "a": constant(1)})
    del proto.graph.value_info[:]
    assert_folds(proto, ["Conv", "Relu"])


@pytest.mark.parametrize(
    "case",
    ["output", "two readers", "computed weight", "computed constant", "overridable", "spatial",
     "other axis", "batch", "wider", "higher rank", "old opset", "divided by zero", "inverse",
     "not finite", "computed bias"],
)  # fmt: skip
def test_it_refuses_behind_where_folding_would_change_the_result(case):
    arrays = {"w": weight("Conv"), "c": constant(O, 1, 1)}
    conv, scale = node("Conv", "x", "w", to="t"), node("Mul", "t", "c")
    nodes, outputs, opset = [conv, scale], ("y",), 17
    match case:
        case "output":
            outputs = ("y", "t")
        case "two readers":
            nodes, outputs = [*nodes, node("Relu", "t", to="z")], ("y", "z")
        case "computed weight":
            arrays["w0"] = arrays.pop("w")
            nodes = [node("Abs", "w0", to="w"), *nodes]
        case "computed constant":
            nodes = [node("ReduceMean", "x", to="c", keepdims=1), *nodes]
            del arrays["c"]
        case "spatial":
            arrays["c"] = constant(1, O, 3, 3)
        case "other axis":
            arrays["w"] = RNG.normal(size=(3, I, 3, 3))
            arrays["c"] = constant(3)  # as many as channels, but along the width
        case "batch":
            arrays["c"] = constant(2, 1, 1, 1)
        case "wider":
            arrays["w"] = RNG.normal(size=(1, I, 3, 3))
        case "higher rank":
            arrays["c"] = constant(1, 1, O, 1, 1)
        case "old opset":
            opset = 6
        case "divided by zero":
            nodes, arrays["c"] = [conv, node("Div", "t", "c")], np.zeros(1)
        case "inverse":
            nodes = [conv, node("Div", "c", "t")]
        case "not finite":
            arrays["c"] = np.full((O, 1, 1), np.inf)
        case "computed bias":
            nodes = [
                node("ReduceMean", "x", to="m", axes=[0, 2, 3], keepdims=0),
                node("Conv", "x", "w", "m", to="t"),
                scale,
            ]
            arrays["w"], arrays["c"] = RNG.normal(size=(I, I, 3, 3)), constant(I, 1, 1)
    proto = build(nodes, IMAGE, arrays, outputs=outputs, opset=opset, infer=case != "old opset")
    if case == "overridable":
        proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [O, 1, 1]))
    assert_refuses(proto)


@pytest.mark.parametrize(
    "case", ["output", "two readers", "as weight", "enlarged", "unknown", "spatial", "computed"]
)
def test_it_refuses_before_where_folding_would_change_the_result(case):
    arrays = {"w": weight("Conv"), "c": constant(I, 1, 1)}
    scale, conv = node("Mul", "x", "c", to="t"), node("Conv", "t", "w")
    nodes, outputs, shape = [scale, conv], ("y",), IMAGE
    match case:
        case "output":
            outputs = ("y", "t")
        case "two readers":
            nodes, outputs = [*nodes, node("Relu", "t", to="z")], ("y", "z")
        case "as weight":
            arrays["w"] = RNG.normal(size=(1, 2, 9, 9))
            nodes = [scale, node("Conv", "w", "t")]
            shape, arrays["c"] = [3, 2, 5, 5], constant()
        case "enlarged":
            shape = [2, 1, 5, 5]
        case "unknown":
            shape = [2, "channels", 5, 5]
        case "spatial":
            arrays["c"] = constant(5)
        case "computed":
            nodes = [node("Abs", "c0", to="c"), *nodes]
            arrays["c0"] = arrays.pop("c")
    assert_refuses(build(nodes, shape, arrays, outputs=outputs))


def test_a_written_out_layer_norm_stays_whole():
    nodes = [
        node("ReduceMean", "x", to="m", axes=[-1]),
        node("Sub", "x", "m", to="d"),
        node("Mul", "d", "d", to="q"),
        node("ReduceMean", "q", to="v", axes=[-1]),
        node("Sqrt", "v", to="s"),
        node("Div", "d", "s", to="n"),
        node("Mul", "n", "gamma", to="g"),
        node("Add", "g", "beta", to="t"),
        node("MatMul", "t", "w", to="u"),
        node("Add", "u", "b"),
    ]
    arrays = {"gamma": constant(I), "beta": constant(I), "w": weight("MatMul"), "b": constant(O)}
    assert_refuses(build(nodes, [3, I], arrays))


def test_a_written_out_norm_of_torchscript_stays_whole():
    """x (1 / sqrt(...)): ONNX Runtime knows it by the gain behind it."""
    nodes = [
        node("Mul", "x", "x", to="q"),
        node("ReduceMean", "q", to="v", axes=[-1]),
        node("Sqrt", "v", to="s"),
        node("Div", "one", "s", to="r"),
        node("Mul", "x", "r", to="n"),
        node("Mul", "n", "gamma", to="g"),
        node("MatMul", "g", "w"),
    ]
    arrays = {"one": 1.0, "gamma": constant(I), "w": weight("MatMul")}
    assert_refuses(build(nodes, [3, I], arrays))


def test_a_written_out_gelu_stays_whole():
    nodes = [
        node("Div", "x", "root", to="d"),
        node("Erf", "d", to="e"),
        node("Add", "e", "one", to="p"),
        node("Mul", "x", "p", to="q"),
        node("Mul", "q", "half", to="t"),
        node("MatMul", "t", "w"),
    ]
    arrays = {"root": np.sqrt(2), "one": 1.0, "half": 0.5, "w": weight("MatMul")}
    assert_refuses(build(nodes, [3, I], arrays))


@pytest.mark.parametrize("factor", [100.0, 1e-7])
def test_float16_weights_that_would_overflow_or_fade_stay(factor):
    arrays = {"w": np.full((O, I, 1, 1), 60000.0 if factor > 1 else 1e-3), "c": factor}
    nodes = [node("Conv", "x", "w", to="t"), node("Mul", "t", "c")]
    assert_refuses(build(nodes, IMAGE, arrays, dtype=np.float16))


def test_shared_constants_are_copied_not_changed():
    arrays = {"w": weight("Conv"), "c": constant(O, 1, 1)}
    nodes = [
        node("Conv", "x", "w", to="t"),
        node("Mul", "t", "c"),
        node("Conv", "x", "w", to="z"),
        node("Add", "z", "c", to="v"),
    ]
    assert_folds(build(nodes, IMAGE, arrays, outputs=("y", "v")), ["Conv", "Conv"])


def test_a_scale_inside_an_if_branch_folds():
    def branch(name, nodes):
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [out])

    then = branch("then", [node("Conv", "x", "w", to="t"), node("Mul", "t", "c", to="a")])
    other = branch("else", [node("Conv", "x", "w", to="b")])
    nodes = [node("If", "flag", then_branch=then, else_branch=other)]
    proto = build(nodes, IMAGE, {"w": weight("Conv"), "c": constant(O, 1, 1)})
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    model = ir.from_proto(proto)
    assert fold_scale_shift(model).changed == 1
    x = RNG.normal(size=IMAGE).astype(np.float32)
    a, b = run_plain(proto, {"x": x})[0], run_plain(ir.to_proto(model), {"x": x})[0]
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


operations = st.lists(
    st.tuples(
        st.sampled_from(["Mul", "Div", "Add", "Sub"]),
        st.booleans(),
        st.sampled_from([(), (1,), (1, 1), (I, 1, 1), (1, I, 1, 1), (5,), (5, 5), (2, 1, 1, 1)]),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(operations, operations, st.booleans(), st.sampled_from([1, 2, 4]), st.integers(0, 99))
def test_any_chain_around_a_conv_computes_the_same(before, after, padded, group, seed):
    rng = np.random.default_rng(seed)
    arrays = {"w": rng.normal(size=(I, I // group, 3, 3))}
    nodes, last = [], "x"
    for i, step in enumerate([*before, None, *after]):
        if step is None:
            pads = [1, 1, 1, 1] if padded else [0, 0, 0, 0]
            nodes.append(node("Conv", last, "w", to=f"t{i}", group=group, pads=pads))
        else:
            op, first, shape = step
            if len(before) < i and not padded and 5 in shape:
                shape = ()  # the image has become smaller
            arrays[f"c{i}"] = rng.uniform(0.5, 2, shape)
            reads = [f"c{i}", last] if first and op != "Div" else [last, f"c{i}"]
            nodes.append(node(op, *reads, to=f"t{i}"))
        last = f"t{i}"
    proto = build(nodes, IMAGE, arrays, outputs=(last,))
    model = ir.from_proto(proto)
    count = fold_scale_shift(model).changed
    folded = ir.to_proto(model)
    assert len(folded.graph.node) == len(nodes) - count
    x = rng.normal(size=IMAGE).astype(np.float32)
    a, b = run_plain(proto, {"x": x})[0], run_plain(folded, {"x": x})[0]
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(a).max())


def columns(smallest, largest):
    return np.array([smallest, 1.0, 1.0, largest])


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_columns_of_very_different_size_stay_scaled_before_they_are_quantized(op, kind):
    nodes = [node(kind, "x", "c", to="a"), node(op, "a", "w")]
    arrays = {"w": weight(op), "c": columns(0.1, 1.0)}
    assert_refuses(build(nodes, [3, I], arrays))
    assert_folds(build(nodes, [3, I], arrays | {"c": columns(0.5, 2.0)}), [op])


def test_a_scale_of_very_different_columns_does_not_move_past_a_shift():
    # A MatMul without an addition behind it takes no shift.
    nodes = [node("Mul", "x", "c", to="a"), node("Add", "a", "s", to="b"), node("MatMul", "b", "w")]
    arrays = {"w": weight("MatMul"), "s": constant(I)}
    assert_refuses(build(nodes, [3, I], arrays | {"c": columns(0.1, 1.0)}))
    assert_folds(build(nodes, [3, I], arrays | {"c": columns(0.5, 2.0)}), ["Add", "MatMul"])
