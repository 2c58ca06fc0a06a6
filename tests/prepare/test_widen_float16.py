"""Float16 models compute in float32 inside, and look the same from outside."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from support.models import (
    FLOAT16,
    build,
    element_types,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    normal,
    ops,
    quality,
    retype,
    run,
    weight,
)

from bitwright.graph import check_model, infer_shapes, load_model
from bitwright.prepare import widen_bfloat16, widen_half_floats
from bitwright.prepare.widen_float16 import simulate_float16


def widen(proto):
    model = load_model(proto)
    infer_shapes(model)
    count = widen_half_floats(model).changed
    check_model(model)
    return ir.to_proto(model), count


@pytest.mark.parametrize("make", [make_cnn, make_mlp, make_transformer])
def test_the_widened_model_computes_the_same_and_more_exactly(make):
    plain = make()
    half = retype(make(), np.float16, FLOAT16)
    wide, count = widen(half)
    assert count > 5
    samples = make_samples(half)
    assert quality(half, wide, samples) > 45
    exact = [{k: v.astype(np.float32) for k, v in sample.items()} for sample in samples]
    for a, b in zip(run(plain, exact), run(wide, samples), strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=0.01, atol=0.01)


def test_inputs_and_outputs_keep_names_and_types():
    half = retype(make_cnn(), np.float16, FLOAT16)
    wide, _ = widen(half)
    for side in ("input", "output"):
        before, after = getattr(half.graph, side), getattr(wide.graph, side)
        assert [(v.name, v.type.tensor_type.elem_type) for v in after] == [
            (v.name, v.type.tensor_type.elem_type) for v in before
        ]
    assert FLOAT16 not in set(element_types(wide).values())
    assert ops(wide)["Cast"] == 2


def test_a_float32_model_is_left_alone():
    model = make_cnn()
    wide, count = widen(model)
    assert count == 0
    assert ops(wide) == ops(model)


def test_casts_and_constants_of_float16_become_float32():
    value = helper.make_tensor("v", FLOAT16, [1], np.array([0.5], np.float16).tobytes(), raw=True)
    model = build(
        [
            node("Cast", ["x"], ["h"], name="cast", to=FLOAT16),
            node("Shape", ["h"], ["s"], name="shape"),
            node("ConstantOfShape", ["s"], ["c"], name="fill", value=value),
            node("Add", ["h", "c"], ["y"], name="add"),
        ],
        [info("x", [2, 3])],
        [info("y", [2, 3], FLOAT16)],
    )
    wide, _ = widen(model)
    sample = {"x": normal(2, 3)}
    np.testing.assert_allclose(run(wide, sample)[0], run(model, sample)[0], rtol=2e-3)
    assert run(wide, sample)[0].dtype == np.float16


def test_bodies_are_widened_too():
    def branch(name, op_type):
        nodes = [node(op_type, ["h", "w"], [name], name=f"{name}_op")]
        return helper.make_graph(nodes, name, [], [info(name, None, FLOAT16)])

    model = build(
        [
            node("MatMul", ["x", "w"], ["h"], name="mm"),
            node(
                "If",
                ["c"],
                ["y"],
                name="choose",
                then_branch=branch("a", "MatMul"),
                else_branch=branch("b", "Add"),
            ),
        ],
        [info("x", [4, 4], FLOAT16), info("c", [], TensorProto.BOOL)],
        [info("y", [4, 4], FLOAT16)],
        {"w": weight(4, 4).astype(np.float16)},
    )
    wide, _ = widen(model)
    for choice in (True, False):
        sample = {"x": normal(4, 4, dtype=np.float16), "c": np.array(choice)}
        np.testing.assert_allclose(
            run(wide, sample)[0], run(model, sample)[0], rtol=0.01, atol=0.01
        )


def test_an_input_that_goes_straight_out_stays():
    model = build(
        [node("Relu", ["x"], ["y"], name="relu")],
        [info("x", [4], FLOAT16)],
        [info("y", [4], FLOAT16), info("x", [4], FLOAT16)],
    )
    wide, _ = widen(model)
    sample = {"x": normal(4, dtype=np.float16)}
    for a, b in zip(run(model, sample), run(wide, sample), strict=True):
        np.testing.assert_array_equal(a, b)


def test_inputs_and_outputs_become_float32_when_asked():
    half = retype(make_cnn(), np.float16, FLOAT16)
    model = load_model(half)
    infer_shapes(model)
    assert widen_half_floats(model, interface=True).changed > 5
    check_model(model)
    wide = ir.to_proto(model)
    types = {v.type.tensor_type.elem_type for v in (*wide.graph.input, *wide.graph.output)}
    assert types == {TensorProto.FLOAT}
    assert ops(wide)["Cast"] == 0
    samples = make_samples(make_cnn())
    narrow = [{name: array.astype(np.float16) for name, array in s.items()} for s in samples]
    for a, b in zip(run(half, narrow), run(wide, samples), strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=0.02, atol=0.02)


def test_weights_in_bfloat16_become_float32_and_so_do_inputs_and_outputs():
    plain = make_mlp(width=32)
    brain = load_model(retype(make_mlp(width=32), ml_dtypes.bfloat16, TensorProto.BFLOAT16))
    infer_shapes(brain)
    assert widen_bfloat16(brain).changed > 5
    check_model(brain)
    samples = make_samples(plain)
    assert quality(plain, ir.to_proto(brain), samples) > 40


def test_a_float32_model_that_rounds_to_bfloat16_stays():
    steps = [
        node("Cast", ["x"], ["b"], name="down", to=TensorProto.BFLOAT16),
        node("Cast", ["b"], ["y"], name="up", to=TensorProto.FLOAT),
    ]
    model = load_model(build(steps, [info("x", [2])], [info("y", [2])], {}))
    infer_shapes(model)
    assert widen_bfloat16(model).changed == 0


def test_what_overflows_in_half_does_so_in_the_simulation_and_the_rest_is_rounded():
    nodes = [node("Mul", ["x", "x"], ["a"]), node("Sqrt", ["a"], ["y"])]
    model = build(nodes, [info("x", [3], FLOAT16)], [info("y", [3], FLOAT16)])
    feeds = {"x": np.float32([1000, 3, 0.1])}
    (cpu,) = run(model, {"x": feeds["x"].astype(np.float16)})
    assert np.isfinite(cpu).all()  # the CPU provider computes it in float32
    rounding = load_model(model)
    infer_shapes(rounding)
    assert simulate_float16(rounding).changed == 2
    check_model(rounding)
    (found,) = run(ir.to_proto(rounding), feeds)
    with np.errstate(over="ignore"):
        expected = np.sqrt(np.square(feeds["x"].astype(np.float16))).astype(np.float32)
    np.testing.assert_array_equal(found[1:], np.float16(found[1:]))
    assert np.isinf(found[0]) and np.isinf(expected[0])
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-3)
