"""Nodes that stay float32 in a model of float16, and why."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.numpy_helper import from_array
from support.half_models import CASES, make_case
from support.models import (
    as_proto,
    build,
    info,
    make_cnn,
    make_samples,
    node,
)

import bitwright
from bitwright.graph import infer_shapes, load_model, normalize
from bitwright.prepare.widen_float16 import simulate_float16
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


def kept(model, **options):
    """Return the nodes that stay float32, which have float32 tensors."""
    plan = bitwright.quantize(model, recipe="float16", **options).plan
    reasons = ((name, one.reason) for name, one in plan.nodes.items())
    return {name for name, why in reasons if why and why != "it has no float32 tensor"}


def test_without_data_squares_stay_float32_up_to_what_makes_them_small_again():
    root = [
        node("Pow", ["x", "two"], ["q"], "square"),
        node("ReduceMean", ["q"], ["m"], "mean", axes=[0]),
        node("Add", ["m", "eps"], ["e"], "epsilon"),
        node("Sqrt", ["e"], ["r"], "root"),
        node("Div", ["x", "r"], ["y"], "norm"),
    ]
    constants = {"two": np.float32(2), "eps": np.float32(1e-5)}
    model = small(root, constants)
    assert kept(model) == {"square", "mean", "epsilon", "root"}
    samples = [{"x": np.float32([[100, 2, 3, 4]])}]
    assert kept(model, data=samples) == set()  # the data says how large they get
    assert kept(model, data=bitwright.RandomData(count=2)) == {"square", "mean", "epsilon", "root"}
    large = [{"x": np.float32([[3000, 2, 3, 4]])}]
    made = bitwright.quantize(model, recipe="float16").model
    expected = Session(as_proto(model)).run(large[0])["y"]
    found = Session(rounding(made)).run(large[0])["y"]
    np.testing.assert_allclose(found, expected, rtol=2e-3)


def rounding(model):
    """Return a model that rounds to half precision wherever a model is float16."""
    half = load_model(as_proto(model))
    normalize(half)
    infer_shapes(half)
    simulate_float16(half)
    return half


@pytest.mark.parametrize(
    ("peak", "stays"),
    # Others may be twice as large; below 2^-22 float16 has hardly a digit.
    [(32_000, False), (33_000, True), (2.5e-7, False), (2e-7, True), (0, False)],
)
def test_the_largest_number_on_the_data_decides(peak, stays):
    model = small([node("Neg", ["x"], ["y"], "neg")], {})
    sample = {"x": np.float32([[peak, -peak / 2, 0, 0]])}
    assert kept(model, data=[sample]) == ({"neg"} if stays else set())


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # Bounded, shifted below zero, or where infinity is right.
        ([node("Tanh", ["x"], ["t"]), node("Mul", ["t", "t"], ["q"]),
          node("Sqrt", ["q"], ["y"])], 0),
        ([node("ReduceMax", ["x"], ["t"]), node("Sub", ["x", "t"], ["d"]),
          node("Exp", ["d"], ["e"]), node("Log", ["e"], ["y"])], 0),
        ([node("Pow", ["x", "three"], ["q"]), node("Add", ["q", "x"], ["s"]),
          node("Tanh", ["s"], ["y"])], 0),
        # What ends in a product is rounded there.
        ([node("Mul", ["x", "x"], ["q"]), node("MatMul", ["q", "w"], ["y"])], 0),
        ([node("Exp", ["x"], ["e"]), node("Log", ["e"], ["y"])], 2),
        ([node("ReduceL2", ["x"], ["l"], axes=[-1]), node("Div", ["x", "l"], ["y"])], 1),
        ([node("ReduceSumSquare", ["x"], ["l"], axes=[-1]), node("Sqrt", ["l"], ["y"])], 2),
    ],
)  # fmt: skip
def test_only_what_overflows_by_its_form_stays_float32_without_data(nodes, expected):
    constants = {"three": np.float32(3), "w": np.ones((4, 4), np.float32)}
    assert len(kept(small(nodes, constants))) == expected


@pytest.mark.parametrize("recipe", ["float16", {"base": "bfloat16", "place": {"must_run": False}}])
def test_positions_and_what_makes_angles_of_them_stay_float32(recipe):
    nodes = [
        node("Cast", ["ids"], ["p"], "positions", to=1),
        node("MatMul", ["p", "rates"], ["a"], "angles"),
        node("Cos", ["a"], ["c"], "cosine"),
        node("Mul", ["c", "x"], ["y"], "rotation"),
    ]
    inputs = [info("ids", [1, 4, 1], TensorProto.INT64), info("x", [1, 4, 4])]
    model = build(nodes, inputs, [info("y", None)], {"rates": np.ones((1, 4), np.float32)})
    plan = bitwright.quantize(model, recipe=recipe).plan
    stays = {name for name, one in plan.nodes.items() if not one.quantized}
    assert stays == {"positions", "angles", "cosine"}


def test_a_counter_of_a_loop_stays_float32_and_the_rest_of_its_body_does_not():
    text = """<ir_version: 8, opset_import: ["": 16]>
    g (float[2,8] x) => (float[2,8] y, float c)
    <int64 count = {5000}, bool go = {1}, float zero = {0}, float one = {1}, float keep = {0.5}> {
        y, c = Loop (count, go, x, zero) <body = b (int64 i, bool d, float[2,8] h, float k)
            => (bool e, float[2,8] n, float l) {
                e = Identity (d)
                m = Mul (h, keep)
                n = Tanh (m)
                l = Add (k, one)
            }>
    }"""
    model = onnx.parser.parse_model(text)
    made = bitwright.quantize(model, recipe="float16")
    assert sum(one.quantized for one in made.plan.nodes.values()) == 3
    answer = Session(rounding(made.model)).run({"x": np.ones((2, 8), np.float32)})
    assert answer["c"] == 5000


@pytest.mark.parametrize("name", CASES)
def test_small_models_of_many_kinds_load_and_agree_in_half_precision(name):
    model, samples = make_case(name)
    expected = [Session(model).run(sample) for sample in samples]
    for data in (None, samples):
        made = bitwright.quantize(model, recipe="float16", data=data).model
        half = Session(rounding(made))
        for sample, answers in zip(samples, expected, strict=True):
            for key, value in half.run(sample).items():
                size = np.abs(answers[key]).max()
                np.testing.assert_allclose(value, answers[key], atol=3e-3 * size)


@pytest.mark.parametrize("name", ["If with weights from outside", "Loop", "Scan"])
def test_bodies_compute_in_half_with_no_more_casts_than_the_model_has_inputs_and_outputs(name):
    model, _ = make_case(name)
    made = bitwright.quantize(model, recipe="float16")
    assert all(
        one.quantized or one.reason == "it has no float32 tensor"
        for one in made.plan.nodes.values()
    )
    casts = [one for one in made.model.graph.all_nodes() if one.op_type == "Cast"]
    assert len(casts) == len(model.graph.input) + len(model.graph.output)


def test_what_only_a_mask_drags_to_infinity_is_converted_and_an_empty_cache_has_no_peak():
    nodes = [
        node("Concat", ["past", "x"], ["k"], "cache", axis=1),
        node("Sub", ["one", "mask"], ["i"], "inverse"),
        node("Mul", ["i", "low"], ["o"], "masked"),
        node("Add", ["k", "o"], ["a"], "scores"),
        node("Softmax", ["a"], ["y"], "softmax"),
    ]
    constants = {"one": np.float32(1), "low": np.float32(np.finfo(np.float32).min)}
    inputs = [info(name, [1, size, 4]) for name, size in (("past", "n"), ("x", 2), ("mask", 1))]
    model = build(nodes, inputs, [info("y", None)], constants)
    empty = np.zeros((1, 0, 4), np.float32)
    x, mask = np.float32([[[1, 2, 3, 4]] * 2]), np.float32([[[1, 1, 0, 1]]])
    assert kept(model, data=[{"past": empty, "x": x, "mask": mask}]) == set()
    # Beside numbers that are large themselves, there is no room for a mask.
    assert kept(model, data=[{"past": empty, "x": -6e3 * x, "mask": mask}]) == {
        "scores", "softmax",
    }  # fmt: skip


def test_operators_that_say_their_type_say_half_where_only_half_floats_are_read():
    nodes = [
        node("Cast", ["ids"], ["f"], "cast", to=1),
        node("ConstantOfShape", ["size"], ["o"], "fill", value=from_array(np.float32([-3.4e38]))),
        node("Add", ["f", "o"], ["s"], "sum"),
        node("Mul", ["x", "s"], ["y"], "product"),
    ]
    inputs = [info("ids", [4], TensorProto.INT64), info("size", [1], TensorProto.INT64),
              info("x", [4])]  # fmt: skip
    made = bitwright.quantize(build(nodes, inputs, [info("y", [4])]), recipe="float16")
    assert all(one.quantized for one in made.plan.nodes.values())
    (fill,) = (one for one in as_proto(made.model).graph.node if one.op_type == "ConstantOfShape")
    array = numpy_helper.to_array(fill.attribute[0].t)
    assert array.dtype == np.float16 and array == [-16376]
    assert sum(one.op_type == "Cast" for one in made.model.graph) == 3


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
