"""Nodes that stay float32 in a model of float16, and why."""

import numpy as np
from onnx import TensorProto
from support.models import (
    as_proto,
    build,
    info,
    make_cnn,
    make_samples,
    node,
)

import bitwright
from bitwright.run import Session


def types_of(model):
    return {tensor.name: tensor.data_type for tensor in as_proto(model).graph.initializer}


def small(nodes, constants, outputs=("y",), inputs=("x",)):
    return build(
        nodes, {name: [1, 4] for name in inputs}, [info(name, None) for name in outputs], constants
    )


def test_a_constant_beyond_float16_keeps_its_node_float32_and_the_plan_says_why():
    model = small(
        [node("Mul", ["x", "big"], ["a"], "scale"), node("Relu", ["a"], ["y"], "relu")],
        {"big": np.float32([1e6, 1, 1, 1])},
    )
    samples = [{"x": np.float32([[1e-3, 2, 3, 4]])}]
    result = bitwright.quantize(model, recipe="float16", data=samples)
    assert result.plan.nodes["scale"].reason == (
        "its constant 'big' holds 1e+06, and float16 ends at 65504"
    )
    assert result.plan.nodes["relu"].quantized
    assert types_of(result.model)["big"] == TensorProto.FLOAT
    session = Session(result.model)
    np.testing.assert_allclose(session.run(samples[0])["y"], [[1000, 2, 3, 4]], rtol=1e-3)


def test_what_overflows_on_the_data_stays_float32():
    model = small(
        [node("Mul", ["x", "x"], ["a"], "square"), node("Sqrt", ["a"], ["y"], "root")], {}
    )
    samples = [{"x": np.float32([[1000, 2, 3, 4]])}]
    result = bitwright.quantize(model, recipe="float16", data=samples)
    reason = "'a' reaches 1e+06 on the data, and float16 ends at 65504"
    assert {one.reason for one in result.plan.nodes.values()} == {reason}
    assert np.isfinite(Session(result.model).run(samples[0])["y"]).all()
    blind = bitwright.quantize(model, recipe="float16").plan
    assert all(one.quantized for one in blind.nodes.values())


def test_excluded_nodes_stay_float32():
    model = make_cnn()
    recipe = {"base": "float16", "select": {"exclude_op_types": ["Conv"]}}
    result = bitwright.quantize(model, recipe=recipe, data=make_samples(model, 2))
    kept = {one.op for one in result.plan.nodes.values() if not one.quantized}
    assert kept == {"Conv"}


def test_what_the_runtime_crashes_on_stays_float32():
    # It ends the process when it opens such a product in float16: this one must be opened.
    nodes = [
        node("Relu", ["x"], ["r"], "before"),
        node("Transpose", ["r"], ["t"], "turn", perm=[1, 0, 2]),
        node("MatMul", ["t", "w"], ["p"], "product"),
        node("Relu", ["p"], ["y"], "after"),
    ]
    constants = {"w": np.ones((8, 4), np.float32)}
    model = build(nodes, [info("x", [2, 3, 8])], [info("y", [3, 2, 4])], constants)
    plan = bitwright.quantize(model, recipe="float16").plan
    reasons = {name: one.reason for name, one in plan.nodes.items()}
    assert reasons["before"] is None and reasons["after"] is None
    assert reasons["turn"] == reasons["product"]
    assert reasons["product"].startswith("ONNX Runtime crashes on a product")


def test_operators_of_the_runtime_are_computed_in_half_where_their_types_allow_it():
    constants = {"w": np.ones((8, 8), np.float32), "g": np.ones(8, np.float32)}
    nodes = [
        node("FusedMatMul", ["x", "w"], ["a"], "product", domain="com.microsoft"),
        node("QuickGelu", ["a"], ["b"], "gelu", domain="com.microsoft"),
        node(
            "SkipSimplifiedLayerNormalization", ["b", "x", "g"], ["y"], "norm",
            domain="com.microsoft",
        ),
    ]  # fmt: skip
    model = build(
        nodes, {"x": [1, 4, 8]}, [info("y", [1, 4, 8])], constants, domains=["com.microsoft"]
    )
    samples = make_samples(model, 2)
    made = bitwright.quantize(model, recipe="float16", data=samples)
    assert all(one.quantized for one in made.plan.nodes.values())
    casts = [one for one in as_proto(made.model).graph.node if one.op_type == "Cast"]
    assert len(casts) == 2 and made.outputs[0].sqnr > 50
