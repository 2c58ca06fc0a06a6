"""Models in float16: their types, and the Casts where types meet."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.models import (
    FLOAT32_MIN,
    as_proto,
    build,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
)

import bitwright
from bitwright.emit.casts import narrow_caches
from bitwright.run import Session


def types_of(model):
    return {tensor.name: tensor.data_type for tensor in as_proto(model).graph.initializer}


def small(nodes, constants, outputs=("y",), inputs=("x",)):
    return build(
        nodes, {name: [1, 4] for name in inputs}, [info(name, None) for name in outputs], constants
    )


def test_masks_and_epsilons_are_moved_to_fit_and_told():
    model = small(
        [
            node("Relu", ["x"], ["s"], "relu"),
            node("Add", ["s", "eps"], ["e"], "add"),
            node("Div", ["x", "e"], ["d"], "div"),
            node("Add", ["d", "mask"], ["m"], "hide"),
            node("Softmax", ["m"], ["y"], "softmax"),
        ],
        {"eps": np.float32(1e-12), "mask": np.float32([[FLOAT32_MIN] * 4])},
    )
    result = bitwright.quantize(model, recipe="float16")
    assert any("2 constants such as 'eps'" in note for note in result.plan.notes)
    found = Session(result.model).run({"x": np.zeros((1, 4), np.float32)})
    np.testing.assert_allclose(found["y"], np.full((1, 4), 0.25), atol=1e-3)


def test_casts_of_the_model_say_float16_where_they_said_float32():
    model = small(
        [
            node("Relu", ["x"], ["a"], "relu"),
            node("Cast", ["a"], ["i"], "count", to=TensorProto.INT64),
            node("Cast", ["i"], ["f"], "back", to=TensorProto.FLOAT),
            node("Add", ["a", "f"], ["y"], "add"),
        ],
        {},
    )
    result = bitwright.quantize(model, recipe="float16")
    assert all(one.quantized for one in result.plan.nodes.values())
    found = Session(result.model).run({"x": np.float32([[1.5, -1, 2, 0]])})
    np.testing.assert_array_equal(found["y"], [[2.5, 0, 4, 0]])


@pytest.mark.parametrize("excluded", [(), ("choose",), ("neg", "abs"), ("neg",), ("mul",)])
def test_bodies_are_float16_and_read_what_is_outside(excluded):
    from onnx import helper

    body = helper.make_graph([node("Neg", ["a"], ["t"], "neg")], "then", [], [info("t", None)])
    other = helper.make_graph([node("Abs", ["a"], ["o"], "abs")], "else", [], [info("o", None)])
    model = build(
        [
            node("Relu", ["x"], ["a"], "relu"),
            node("If", ["c"], ["b"], "choose", then_branch=body, else_branch=other),
            node("Mul", ["b", "a"], ["y"], "mul"),
        ],
        [info("x", [1, 4]), info("c", [], TensorProto.BOOL)],
        [info("y", None)],
    )
    recipe = {"base": "float16", "select": {"exclude": excluded}}
    result = bitwright.quantize(model, recipe=recipe)
    nodes = result.plan.nodes
    assert nodes["choose"].quantized == (excluded not in (("choose",), ("neg", "abs")))
    assert all(nodes[name].quantized for name in {"relu", "neg", "abs", "mul"} - {*excluded})
    feeds = {"x": np.float32([[1, -2, 3, 0]]), "c": np.array(True)}
    found = Session(result.model).run(feeds)
    np.testing.assert_array_equal(found["y"], [[-1, 0, -9, 0]])


def test_an_output_that_is_a_cache_in_float16_keeps_its_name_where_caches_are_narrow():
    past = "past_key_values.0.key"
    nodes = [
        node("Cast", [past], ["half"], "given", to=TensorProto.FLOAT16),
        node("Cast", [past], ["seen"], "seen", to=TensorProto.FLOAT16),
        node("Neg", ["half"], ["neg"], "neg"),
        node("Cast", ["neg"], ["y"], "result", to=TensorProto.FLOAT),
    ]
    outputs = [info("seen", [1, 4], TensorProto.FLOAT16), info("y", [1, 4])]
    model = ir.from_proto(build(nodes, {past: [1, 4]}, outputs))
    narrow_caches(model)
    assert [value.dtype for value in model.graph.inputs] == [ir.DataType.FLOAT16]
    given = np.float16([[1, -2, 3, 0.5]])
    found = Session(ir.to_proto(model)).run({past: given})
    np.testing.assert_array_equal(found["seen"], given)
    np.testing.assert_array_equal(found["y"], -given)


def test_inputs_and_outputs_are_float16_when_asked_for():
    model = make_cnn()
    samples = make_samples(model, 3)
    recipe = {"base": "float16", "float_io": False}
    result = bitwright.quantize(model, recipe=recipe, data=samples)
    ends = [*result.model.graph.inputs, *result.model.graph.outputs]
    assert {value.dtype.name for value in ends} == {"FLOAT16"}
    assert "Cast" not in {n.op_type for n in result.model.graph}
    assert result.outputs[0].sqnr > 45
    assert bitwright.quantize(model, recipe=recipe).outputs == []


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
def test_every_weight_is_float16_and_there_is_no_quantizer(make):
    model = make()
    result = bitwright.quantize(model, recipe="float16", data=make_samples(model, 2))
    assert not {n.op_type for n in result.model.graph} & {"QuantizeLinear", "DequantizeLinear"}
    kept = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    stored = types_of(result.model)
    assert {stored[name] for name in kept & stored.keys()} == {TensorProto.FLOAT16}
    assert {v.dtype.name for v in result.model.graph.outputs} == {"FLOAT"}
    assert result.outputs[0].sqnr > 50


def test_the_same_model_gives_the_same_bytes():
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(4, 4)).astype(np.float32) for i in range(6)}
    names = ["x", *(f"t{i}" for i in range(5)), "y"]
    nodes = [node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"mm{i}") for i in range(6)]
    model = small(nodes, weights)
    first, second = (
        bitwright.quantize(model, recipe="bfloat16")
        .to_proto()
        .SerializeToString(deterministic=True)
        for _ in range(2)
    )
    assert first == second
    casts = [n.input[0] for n in onnx.load_from_string(first).graph.node if n.op_type == "Cast"]
    assert sorted(casts) == sorted(casts, key=lambda name: name[:2]) and len(casts) == 6
