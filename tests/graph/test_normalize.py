from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.models import info, make_cnn, make_samples

import bitwright
from bitwright import graph
from bitwright.errors import ModelError
from bitwright.graph import (
    check_model,
    find_quantized_nodes,
    infer_shapes,
    load_model,
    normalize,
    refuse_unsupported,
    save_model,
)
from bitwright.run import Session


def run(model, **feeds):
    return Session(model).run(feeds)


def test_constant_nodes_become_initializers_at_all_levels_and_survive_saving(builders, tmp_path):
    weight = numpy_helper.from_array(np.full((3, 3), 2, np.float32), "some_other_name")
    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["k"], value_float=4.0),
            helper.make_node("Mul", ["x", "k"], ["yes"]),
        ],
        "then",
        [],
        [builders.info("yes")],
    )
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["no"], value_floats=[1.0, 2.0])],
        "else",
        [],
        [builders.info("no")],
    )
    model = load_model(
        builders.build(
            [
                helper.make_node("Constant", [], ["w"], value=weight),
                helper.make_node("MatMul", ["x", "w"], ["m"]),
                helper.make_node("If", ["c"], ["b"], then_branch=body, else_branch=other),
            ],
            [builders.info("x", 1, [2, 3]), builders.info("c", TensorProto.BOOL, [])],
            [builders.info("m"), builders.info("b")],
        )
    )
    feeds = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    expected = run(model, **feeds)
    notes = normalize(model)
    assert "turned 2 Constant nodes into initializers." in notes  # the returned one stays
    assert "w" in model.graph.initializers
    save_model(model, tmp_path / "m.onnx")
    for name, array in run(tmp_path / "m.onnx", **feeds).items():
        np.testing.assert_array_equal(array, expected[name])


def test_functions_are_inlined(builders):
    double = helper.make_function(
        "mine",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    proto = builders.build(
        [
            helper.make_node("Double", ["x"], ["h"], domain="mine", name="one"),
            helper.make_node("Double", ["h"], ["y"], domain="mine", name="two"),
        ],
        [builders.info("x", 1, [2])],
        [builders.info("y")],
        domains=["mine"],
    )
    proto.functions.append(double)
    model = load_model(proto)
    assert "inlined 1 model-local function: Double." in normalize(model)
    assert [node.op_type for node in model.graph] == ["Add", "Add"] and not model.functions
    np.testing.assert_array_equal(run(model, x=np.ones(2, np.float32))["y"], [4, 4])


def test_initializers_that_are_inputs_become_constants_and_it_is_said(builders):
    proto = builders.mlp(ir_version=3)
    proto.graph.input.append(builders.info("w1", 1, [64, 64]))
    model = load_model(proto)
    notes = normalize(model)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert any("constant now: w1" in note for note in notes)
    assert set(model.graph.initializers) == {"w1", "b1", "w2"}


def test_empty_and_duplicate_names_become_unique_in_the_same_way_each_time(builders):
    proto = builders.mlp()
    for node, name in zip(proto.graph.node, ["n", "", "n", "n_1"], strict=True):
        node.name = name
    first, second = load_model(proto), load_model(proto)
    notes = normalize(first)
    normalize(second)
    names = [node.name for node in first.graph]
    assert names == ["n", "Add_a", "n_2", "n_1"] == [node.name for node in second.graph]
    assert len(notes) == 2
    Session(first)


def test_unused_initializers_go_and_a_normal_model_stays_as_it_is(builders):
    proto = builders.mlp()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "idle"))
    model = load_model(proto)
    assert normalize(model) == ["removed 1 unused initializer: idle."]
    assert normalize(model) == []


def test_float64_tensors_are_reported(builders):
    proto = builders.mlp()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(3), "d"))
    proto.graph.node.append(helper.make_node("Neg", ["d"], ["e"], name="e"))
    assert any("float64 stay as they are: d" in note for note in normalize(load_model(proto)))


def test_a_sparse_constant_is_refused(builders):
    values = numpy_helper.from_array(np.ones(1, np.float32), "v")
    indices = numpy_helper.from_array(np.array([1]), "i")
    node = helper.make_node(
        "Constant", [], ["y"], sparse_value=helper.make_sparse_tensor(values, indices, [3])
    )
    with pytest.raises(ModelError, match="sparse"):
        load_model(builders.build([node], [], [builders.info("y")]))


@pytest.mark.parametrize(
    ("dtype", "word"), [(TensorProto.DOUBLE, "float64"), (TensorProto.BFLOAT16, "bfloat16")]
)
def test_a_model_all_in_another_float_type_is_refused_with_the_remedy(builders, dtype, word):
    model = load_model(
        builders.build(
            [helper.make_node("Relu", ["x"], ["y"])],
            [builders.info("x", dtype, [2])],
            [builders.info("y", dtype, [2])],
        )
    )
    infer_shapes(model)
    with pytest.raises(ModelError, match=f"computes in {word} throughout.*float32"):
        refuse_unsupported(model)


def test_float32_and_float16_models_are_accepted(builders):
    refuse_unsupported(load_model(builders.mlp()))
    half = builders.build(
        [helper.make_node("Relu", ["x"], ["y"])],
        [builders.info("x", TensorProto.FLOAT16, [2])],
        [builders.info("y", TensorProto.FLOAT16, [2])],
    )
    refuse_unsupported(load_model(half))


@pytest.mark.parametrize(
    ("op", "domain"),
    [
        ("QuantizeLinear", ""),
        ("DequantizeLinear", "com.microsoft"),
        ("QLinearConv", ""),
        ("QLinearAdd", "com.microsoft"),
        ("MatMulInteger", ""),
        ("MatMulNBits", "com.microsoft"),
    ],
)
def test_an_already_quantized_model_is_refused(builders, op, domain):
    proto = builders.mlp(domains=["com.microsoft"])
    proto.graph.node.append(helper.make_node(op, ["y"] * 8, ["q"], name="quant", domain=domain))
    model = load_model(proto)
    assert [node.name for node in find_quantized_nodes(model)] == ["quant"]
    with pytest.raises(ModelError, match=f"already quantized .*{op} 'quant'.*float model"):
        refuse_unsupported(model)
    refuse_unsupported(model, allow_quantized=True)


@pytest.mark.slow
def test_real_models_run_the_same_after_normalizing(ocr_model):
    path, shape = ocr_model
    x = np.random.default_rng(0).random(shape, np.float32)
    model = load_model(path)
    name = model.graph.inputs[0].name
    normalize(model)
    check_model(model)
    assert not any(node.op_type == "Constant" for node in model.graph)
    before = Session(path).run({name: x})
    after = Session(model).run({name: x})
    for key, array in before.items():
        np.testing.assert_allclose(after[key], array, atol=1e-6)


def test_a_circle_is_refused(builders):
    proto = builders.build(
        [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
        [],
        [builders.info("a")],
    )
    with pytest.raises(ModelError, match="circle"):
        load_model(proto)


def test_a_constant_that_the_model_returns_stays_and_its_readers_get_an_initializer(builders):
    model = load_model(
        builders.build(
            [
                helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0, 3.0]),
                helper.make_node("Add", ["x", "k"], ["y"], name="add"),
            ],
            [builders.info("x", 1, [3])],
            [builders.info("k", 1, [3]), builders.info("y", 1, [3])],
        )
    )
    feeds = {"x": np.ones(3, np.float32)}
    expected = run(model, **feeds)
    normalize(model)
    assert list(model.graph.initializers) == ["k_constant"]
    for name, array in run(model, **feeds).items():
        np.testing.assert_array_equal(array, expected[name])


def make_overridable():
    """The weight of conv1 and the bias of conv2 are inputs, listed before the image."""
    model = make_cnn()
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in ("w1", "b2"):
        model.graph.input.insert(0, info(name, list(stored[name].dims)))
    return model


def test_hidden_defaults_come_back_in_their_order():
    given = make_overridable()
    model = graph.load_model(given)
    hidden = graph.hide_defaults(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert len(hidden.nodes) == 2
    hidden.show(model)
    assert [value.name for value in model.graph.inputs] == [v.name for v in given.graph.input]
    assert "bitwright.internal" not in model.opset_imports and not model.functions


def test_a_model_without_such_inputs_is_left_alone():
    model = graph.load_model(make_cnn())
    before = graph.fingerprint(model, weights=True)
    graph.hide_defaults(model).show(model)
    assert graph.fingerprint(model, weights=True) == before


def test_callers_can_replace_what_they_could_replace_before(tmp_path):
    given = make_overridable()
    samples = make_samples(make_cnn())
    recipe = {"base": "int8", "keep_defaults": True}
    result = bitwright.quantize(given, tmp_path / "q.onnx", data=samples, recipe=recipe)
    assert result.outputs[0].sqnr > 20
    assert result.plan.nodes["conv1"].reason == "its weight is computed at run time"
    made = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.input] == [v.name for v in given.graph.input]
    float_session = ort.InferenceSession(given.SerializeToString())
    session = ort.InferenceSession(tmp_path / "q.onnx")
    other = {"w1": np.zeros([8, 3, 3, 3], np.float32), **samples[0]}
    expected, found = float_session.run(None, other)[0], session.run(None, other)[0]
    assert not np.allclose(found, session.run(None, samples[0])[0], atol=1e-2)
    assert np.abs(found - expected).max() < 0.2


def test_without_being_asked_they_become_constants():
    result = bitwright.quantize(make_overridable(), data=make_samples(make_cnn()), recipe="int8")
    assert [value.name for value in result.model.graph.inputs] == ["x"]
    assert any("could be overridden" in note for note in result.plan.notes)
