"""Dynamic products with one scale for each row compute the formula, fused, and rows stay apart."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.models import (
    as_proto,
    build,
    constants_of,
    info,
    node,
    normal,
    ops,
    quality,
    run,
    weight,
)
from support.plans import edited

import bitwright
from bitwright import PlanError
from bitwright.recipe import Recipe


def dynamic(model, **changes):
    recipe = Recipe(mode="dynamic", **{"optimize": False, "per_channel": True, **changes})
    return as_proto(bitwright.quantize(model, recipe=recipe).model)


def fused(model):
    """Count the op types of a model as ONNX Runtime runs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = path = str(fused.folder / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return ops(onnx.load(path))


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    fused.folder = tmp_path


def dense(shape, *, opset=17, op="MatMul", before=(), outputs=("y",), **attributes):
    """Return x (behind some nodes) times w plus b."""
    turned = bool(attributes.get("transB"))
    w = weight(shape[-1], 8)
    constants = {"w": w.T.copy() if turned else w, "b": normal(8, seed=3)}
    x = before[-1].output[0] if before else "x"
    if op == "Gemm":
        nodes = [node("Gemm", [x, "w", "b"], ["y"], name="op", **attributes)]
    else:
        nodes = [
            node("MatMul", [x, "w"], ["p"], name="op"),
            node("Add", ["p", "b"], ["y"], name="add"),
        ]
    return build([*before, *nodes], {"x": shape}, dict.fromkeys(outputs), constants, opset=opset)


def by_rows(x, floor=None):
    """Return an activation as the formula rounds it, in float64."""
    x = x.astype(np.float64)
    if floor is None:
        size = np.abs(x).max(axis=-1, keepdims=True)
        return np.rint(x / size * 127) / 127 * size
    size = (x + floor).max(axis=-1, keepdims=True)
    return np.rint((x + floor) / size * 255) / 255 * size - floor


def stored(model, name="w"):
    constants = constants_of(model)
    return constants[f"{name}_quantized"].astype(np.float64) * constants[f"{name}_scale"]


@pytest.mark.parametrize("opset", [13, 17, 18, 21, 23])
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (2, 2, 3, 16)])
def test_a_product_is_that_of_rounded_rows_and_runs_in_one_kernel(opset, shape):
    model = dense(list(shape), opset=opset)
    quantized = dynamic(model)
    x = normal(*shape, seed=5)
    wanted = by_rows(x) @ stored(quantized) + constants_of(model)["b"]
    np.testing.assert_allclose(run(quantized, {"x": x})[0], wanted, rtol=1e-4, atol=1e-5)
    kernels = fused(quantized)
    assert kernels["MatMulIntegerToFloat"] == 1
    assert not {"MatMul", "DequantizeLinear", "MatMulInteger"} & kernels.keys()


@pytest.mark.parametrize(
    "attributes", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0, "transB": 1}, {"beta": 0.0}]
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_gemm_keeps_its_factors_and_its_bias(attributes, per_channel):
    model = dense([3, 16], op="Gemm", **attributes)
    quantized = dynamic(model, per_channel=per_channel)
    x = normal(3, 16, seed=5)
    # Alpha is in the stored weight already.
    wanted = by_rows(x) @ stored(quantized) + attributes.get("beta", 1) * constants_of(model)["b"]
    np.testing.assert_allclose(run(quantized, {"x": x})[0], wanted, rtol=1e-4, atol=1e-5)
    assert fused(quantized)["MatMulIntegerToFloat"] == 1


@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 40),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_rows_of_every_size_lose_the_rounding_of_their_own_levels_at_most(
    rows, width, exponent, seed
):
    model = dense([rows, width])
    quantized = dynamic(model, weight="uint8" if seed % 2 else "int8")
    x = normal(rows, width, seed=seed) * np.float32(2.0**exponent)
    found, exact = run(quantized, {"x": x})[0], run(model, {"x": x})[0]
    w = constants_of(model)["w"].astype(np.float64)
    # Half a level of x in each product, and half a level of w.
    size = np.abs(x).max(axis=-1, keepdims=True).astype(np.float64)
    span = np.maximum(w.max(axis=0), 0) - np.minimum(w.min(axis=0), 0)
    worst = size / 254 * np.abs(w).sum(axis=0) + width * size * 1.02 * span / 254
    assert (np.abs(found - exact) <= 1.05 * worst + 1e-5 * np.abs(exact)).all()


def test_a_sample_has_its_own_answer_whatever_else_is_in_the_batch():
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="first"),
        node("Tanh", ["a"], ["t"], name="act"),
        node("MatMul", ["t", "w"], ["y"], name="second"),
    ]
    constants = {"v": weight(16, 32), "w": weight(32, 8, seed=1)}
    model = build(nodes, {"x": ["batch", 3, 16]}, {"y": None}, constants)
    batch = normal(8, 3, 16, seed=1) * np.logspace(-1, 1, 8, dtype=np.float32)[:, None, None]

    def difference(quantized):
        alone = [run(quantized, {"x": batch[i : i + 1]})[0] for i in range(8)]
        return np.abs(run(quantized, {"x": batch})[0] - np.concatenate(alone)).max()

    assert difference(dynamic(model)) <= 1e-5
    assert difference(dynamic(model, dynamic_scale="tensor")) > 1e-3


def test_readers_of_an_activation_share_its_rows_and_readers_of_a_weight_its_integers():
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="one"),
        node("MatMul", ["x", "w"], ["b"], name="two"),
        node("MatMul", ["a", "w"], ["c"], name="three"),
        node("Add", ["b", "c"], ["y"], name="sum"),
    ]
    constants = {"v": weight(16, 16), "w": weight(16, 8, seed=1)}
    model = build(nodes, {"x": [3, 16]}, {"y": None}, constants)
    quantized = dynamic(model)
    assert ops(quantized)["QuantizeLinear"] == 2
    assert ops(quantized)["DequantizeLinear"] == 4
    assert sorted(n for n in constants_of(quantized) if n.endswith("w_quantized")) == [
        "w_quantized"
    ]
    assert fused(quantized)["MatMulIntegerToFloat"] == 3
    assert quality(model, quantized, [{"x": normal(3, 16, seed=7)}]) > 35


@pytest.mark.parametrize("before", [(), (node("Relu", ["x"], ["r"], name="relu"),)])
def test_rows_of_zeros_of_infinities_and_of_no_numbers_come_out_as_in_float(before):
    model = dense([6, 16], before=before)
    x = np.abs(normal(6, 16, seed=5)) * 3
    x[1] = 0
    x[2, 3], x[3, 4], x[4, :] = np.inf, np.nan, np.nan
    x[5, 0] = 1e-42  # has no inverse
    found, wanted = run(dynamic(model), {"x": x})[0], run(model, {"x": x})[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    assert (np.sign(found[2]) == np.sign(wanted[2])).all()
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-6)
    np.testing.assert_allclose(found[[0, 5]], wanted[[0, 5]], atol=0.1)


def test_minus_infinity_comes_out_as_in_float():
    model = dense([2, 16])
    x = normal(2, 16, seed=5)
    x[1, 3] = -np.inf
    found, wanted = run(dynamic(model), {"x": x})[0], run(model, {"x": x})[0]
    assert (np.sign(found[1]) == np.sign(wanted[1])).all()
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


def test_behind_a_layer_norm_rows_need_no_look_for_what_is_no_number():
    norm = node("LayerNormalization", ["x", "g"], ["n"], name="norm")
    model = dense([4, 16], before=(norm,))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(16, np.float32), "g"))
    quantized = dynamic(model)
    assert not {"ReduceMean", "Clip"} & ops(quantized).keys()
    x = normal(4, 16, seed=5)
    x[1, 3], x[2, 4] = np.inf, np.nan
    found, wanted = run(quantized, {"x": x})[0], run(model, {"x": x})[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found[[0, 3]], wanted[[0, 3]], atol=0.05)


HALF, ROOT = np.float32(0.5), np.float32(np.sqrt(2))


def gelus():
    """Yield the ways to write a Gelu, with the constants that they need."""
    erf = [
        node("Div", ["x", "root"], ["d"], name="div"),
        node("Erf", ["d"], ["e"], name="erf"),
        node("Add", ["e", "one"], ["s"], name="plus"),
    ]
    constants = {"root": ROOT, "one": np.float32(1), "half": HALF}
    halved = node("Mul", ["x", "half"], ["h"], name="halved")
    yield [*erf, halved, node("Mul", ["h", "s"], ["r"], name="last")], constants
    first = node("Mul", ["x", "s"], ["h"], name="first")
    yield [*erf, first, node("Mul", ["h", "half"], ["r"], name="last")], constants


@pytest.mark.parametrize("way", [0, 1, "op", "relu"])
def test_what_is_bounded_below_has_all_levels_above_the_bound(way):
    if isinstance(way, int):
        before, constants = [*gelus()][way]
        floor, opset = 0.1701, 17
    else:
        op_type, floor, opset = ("Gelu", 0.1701, 20) if way == "op" else ("Relu", 0.0, 17)
        before, constants = [node(op_type, ["x"], ["r"], name="act")], {}
    model = dense([5, 16], before=before, outputs=("y", "r"), opset=opset)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    quantized = dynamic(model)
    assert "Abs" not in ops(quantized)
    x = normal(5, 16, seed=5) * 2
    found, active = run(quantized, {"x": x}, ["y", "r"])
    wanted = by_rows(active, floor) @ stored(quantized) + constants_of(model)["b"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)
    assert fused(quantized)["MatMulIntegerToFloat"] == 1


def test_a_product_that_only_looks_like_a_gelu_is_rounded_around_zero():
    before, constants = next(gelus())
    for name, other in (("half", np.float32(2)), ("one", np.float32(0)), ("root", np.float32(1))):
        model = dense([5, 16], before=before)
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.asarray(array), given)
            for given, array in {**constants, name: other}.items()
        )
        assert ops(dynamic(model))["Abs"] == 1


def test_a_floor_needs_a_bias_that_can_take_it():
    nodes = [
        node("Gelu", ["x"], ["r"], name="act"),
        node("MatMul", ["r", "w"], ["y"], name="op"),
    ]
    model = build(nodes, {"x": [5, 16]}, {"y": None}, {"w": weight(16, 8)}, opset=20)
    quantized = dynamic(model)
    assert ops(quantized)["Abs"] == 1
    assert quality(model, quantized, [{"x": normal(5, 16, seed=7)}]) > 35


def test_a_table_is_read_by_rows():
    nodes = [
        node("Gather", ["words", "ids"], ["a"], name="words"),
        node("MatMul", ["a", "w"], ["y"], name="op"),
    ]
    table = weight(300, 64) * np.logspace(-2, 2, 300, dtype=np.float32)[:, None]
    constants = {"words": table, "w": weight(64, 8)}
    model = build(nodes, [info("ids", [2, 4], TensorProto.INT64)], {"a": None}, constants)
    quantized = dynamic(model)
    ids = np.array([[0, 1, 2, 3], [299, 150, 7, 0]])
    [found] = run(quantized, {"ids": ids})
    exact = table[ids]
    worst = np.abs(exact).max(axis=-1, keepdims=True) / 254 * 1.01
    assert (np.abs(found - exact) <= worst).all()
    assert constants_of(quantized)["words_quantized"].dtype == np.int8


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_products_inside_bodies_read_rows_of_what_they_capture(kind):
    product = node("MatMul", ["x", "w"], ["inside"], name="op")
    outer = node("MatMul", ["x", "w"], ["z"], name="outer")
    if kind == "If":
        other = node("Identity", ["x"], ["copy"], name="copy")
        bodies = {
            "then_branch": helper.make_graph([product], "then", [], [info("inside", [3, 8])]),
            "else_branch": helper.make_graph([other], "else", [], [info("copy", [3, 8])]),
        }
        holder = node("If", ["go"], ["y"], name="holder", **bodies)
        constants = {"w": weight(8, 8), "go": np.array(True)}
    else:
        body = helper.make_graph(
            [product, node("Identity", ["c"], ["c2"])],
            "body",
            [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL)],
            [info("c2", [], TensorProto.BOOL), info("inside", [3, 8])],
        )
        holder = node("Loop", ["times", "go"], ["y"], name="holder", body=body)
        constants = {"w": weight(8, 8), "go": np.array(True), "times": np.array(2)}
    model = build([outer, holder], {"x": [3, 8]}, {"y": None, "z": None}, constants)
    quantized = dynamic(model)
    assert ops(quantized)["QuantizeLinear"] == 1
    assert quality(model, quantized, [{"x": normal(3, 8, seed=2)}]) > 30


def test_a_plan_may_ask_for_one_scale_where_rows_have_one():
    model = dense([3, 16])
    plan = bitwright.make_plan(model, recipe={"base": "int8-dynamic", "optimize": False})
    one = msgspec.structs.replace(plan.nodes["op"], per_token=False)
    result = bitwright.apply_plan(edited(plan, nodes={"op": one}), model)
    assert ops(as_proto(result.model))["DynamicQuantizeLinear"] == 1


def test_a_plan_that_asks_for_rows_where_there_are_none_is_refused():
    model = dense([16, 16], op="Gemm", transA=1)
    plan = bitwright.make_plan(model, recipe={"base": "int8-dynamic", "optimize": False})
    rows = msgspec.structs.replace(plan.nodes["op"], per_token=True)
    with pytest.raises(PlanError, match="reads its rows as columns; set its per_token to false"):
        bitwright.apply_plan(edited(plan, nodes={"op": rows}), model)
    lost = msgspec.structs.replace(rows, inputs=(None, None, None))
    with pytest.raises(PlanError, match="products of an activation with a stored matrix"):
        bitwright.apply_plan(edited(plan, nodes={"op": lost}), model)


def make_tied(head):
    """An embedding whose table is the weight of the head, too, as language models have it."""
    table = weight(300, 64) * np.logspace(-1, 1, 300, dtype=np.float32)[:, None]
    nodes = [
        node("Gather", ["table", "ids"], ["e"], name="words"),
        node("MatMul", ["e", "w"], ["p"], name="mix"),
        node("Relu", ["p"], ["r"], name="act"),
    ]
    constants = {"table": table, "w": weight(64, 64), "b": normal(300, seed=2)}
    if head == "MatMul":
        turn = node("Transpose", ["table"], ["turned"], name="turn", perm=[1, 0])
        product = node("MatMul", ["r", "turned"], ["q"], name="head")
        nodes += [turn, product, node("Add", ["q", "b"], ["y"], name="add")]
    else:
        nodes += [node("Gemm", ["r", "table", "b"], ["y"], name="head", transB=1)]
    return build(nodes, [info("ids", [4], TensorProto.INT64)], {"y": None}, constants)


@pytest.mark.parametrize("head", ["MatMul", "Gemm"])
def test_a_table_that_the_head_reads_too_is_stored_once(head):
    model = make_tied(head)
    quantized = dynamic(model)
    large = {name for name, array in constants_of(quantized).items() if array.size > 64 * 64}
    assert large == {"table_quantized"}
    assert [item.name for item in quantized.graph.node].count("turn") == 0
    kernels = fused(quantized)
    assert kernels["MatMulIntegerToFloat"] == 2
    assert not {"Transpose", "DequantizeLinear"} & kernels.keys()
    assert quality(model, quantized, [{"ids": np.array([0, 7, 150, 299])}]) > 35


def test_a_weight_that_an_embedding_reads_through_a_transpose_is_stored_once():
    nodes = [
        node("Transpose", ["head"], ["turned"], name="turn", perm=[1, 0]),
        node("Gather", ["turned", "ids"], ["e"], name="words"),
        node("MatMul", ["e", "head"], ["y"], name="product"),
    ]
    model = build(
        nodes, [info("ids", [4], TensorProto.INT64)], {"y": None}, {"head": weight(64, 300)}
    )
    quantized = dynamic(model)
    large = {name for name, array in constants_of(quantized).items() if array.size > 64 * 64}
    assert large == {"head_quantized"}
    assert quality(model, quantized, [{"ids": np.array([0, 7, 150, 299])}]) > 35


def test_a_head_behind_a_transpose_has_rows_or_is_float():
    model = make_tied("MatMul")
    plan = bitwright.make_plan(model, recipe={"base": "int8-dynamic", "optimize": False})
    written = as_proto(bitwright.apply_plan(plan, model).model)
    assert fused(written)["MatMulIntegerToFloat"] == 2
    one = msgspec.structs.replace(plan.nodes["head"], per_token=False)
    with pytest.raises(PlanError, match="input of node 'head', number 1, is not tensor 'table'"):
        bitwright.apply_plan(edited(plan, nodes={"head": one}), model)
