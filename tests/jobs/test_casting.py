"""Models in float16 and bfloat16, against float and against other converters."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.models import (
    as_proto,
    build,
    info,
    make_cnn,
    make_samples,
    make_transformer,
    node,
    weight,
)

import bitwright
from bitwright.errors import PlanError, RecipeError
from bitwright.run import Session


def types_of(model):
    return {tensor.name: tensor.data_type for tensor in as_proto(model).graph.initializer}


def noise(model, samples, expected):
    session = Session(model)
    answers = [session.run(sample) for sample in samples]
    errors = [
        np.square(a[name].astype(np.float64) - e[name]).sum()
        for a, e in zip(answers, expected, strict=True)
        for name in e
    ]
    return float(np.sum(errors))


@pytest.mark.parametrize("make", [make_cnn, make_transformer])
@pytest.mark.parametrize("converter", ["onnxruntime.transformers.float16", "onnxconverter_common"])
def test_it_loses_no_more_than_other_converters(make, converter):
    peer = pytest.importorskip(converter)
    convert = (
        getattr(peer, "convert_float_to_float16", None) or peer.float16.convert_float_to_float16
    )
    model = make()
    samples = make_samples(model, 4)
    session = Session(model)
    expected = [session.run(sample) for sample in samples]
    ours = bitwright.quantize(model, recipe="float16", data=samples).model
    theirs = convert(onnx.ModelProto.FromString(model.SerializeToString()), keep_io_types=True)
    # Fused nodes round less often, so that they may differ a little either way.
    assert noise(ours, samples, expected) <= 1.25 * noise(theirs, samples, expected)


def test_bfloat16_stores_weights_that_are_rounded_as_its_casts_do():
    import ml_dtypes

    model = make_cnn()
    result = bitwright.quantize(model, recipe="bfloat16", data=make_samples(model, 2))
    stored = types_of(result.model)
    assert stored["w1"] == TensorProto.BFLOAT16 and result.outputs[0].sqnr > 35
    assert any("computed in float32" in note for note in result.plan.notes)
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = result.model.graph.initializers["w1"].const_value.numpy()
    np.testing.assert_array_equal(kept, given["w1"].astype(ml_dtypes.bfloat16))


def test_bfloat16_for_other_runtimes_is_written_and_not_run():
    recipe = {"base": "bfloat16", "place": {"must_run": False}}
    model = make_cnn()
    result = bitwright.quantize(model, recipe=recipe, data=make_samples(model, 2))
    assert result.outputs == [] and any("not run or measured here" in n for n in result.plan.notes)
    assert "not run beside float" in result.verdict.sentence
    assert result.model.opset_imports[""] == 22
    made = {v.dtype.name for n in result.model.graph if n.op_type == "Conv" for v in n.outputs}
    assert made == {"BFLOAT16"}


def test_a_plan_is_applied_again_to_the_same_bytes():
    model = make_transformer()
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, recipe="float16", data=samples)
    again = bitwright.apply_plan(plan, model, data=samples)
    first = bitwright.quantize(model, recipe="float16", data=samples)
    assert as_proto(first.model) == as_proto(again.model)
    assert again.outputs[0].sqnr > 50


def test_it_compares_with_float_node_by_node():
    model = make_cnn()
    samples = make_samples(model, 2)
    result = bitwright.quantize(model, recipe="float16", data=samples)
    found = bitwright.compare(model, result.model, data=samples)
    assert found.outputs[0].sqnr > 50


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"per_channel": True}, "per_channel has no effect in the mode cast"),
        ({"weight": "int8"}, "both in float16 or both in bfloat16"),
        ({"place": {"isolated": True}}, "place.isolated has no effect in the mode cast"),
    ],
)
def test_what_has_no_effect_is_refused(change, sentence):
    with pytest.raises(RecipeError, match=sentence):
        bitwright.load_recipe({"base": "float16", **change})
    with pytest.raises(RecipeError, match="float_io is for the mode cast"):
        bitwright.load_recipe({"base": "int8", "float_io": False})


def test_what_is_about_scales_has_none_here():
    model = make_cnn()
    samples = make_samples(model, 2)
    plan = bitwright.make_plan(model, recipe="float16", data=samples)
    with pytest.raises(PlanError, match="quantizes none"):
        bitwright.find_sensitivity(model, plan, data=samples)
    with pytest.raises(RecipeError, match="'float16' is without quantizers"):
        bitwright.tune(model, data=samples, recipe="float16")
    with pytest.raises(RecipeError, match="it has no ranges"):
        bitwright.quantize(model, data=samples, recipe="float16", effort="medium")


def test_the_result_speaks_of_converted_nodes_not_of_quantized_ones():
    demo = bitwright.load_demo()
    converted = bitwright.quantize(demo.model_path, recipe="float16")
    assert (
        repr(converted)
        == "<Result: Recipe float16: 20 of 20 nodes converted to float16, 0 left in float32>"
    )
    stored = bitwright.quantize(demo.model_path, recipe="bfloat16")
    assert "8 of 20 nodes stored in bfloat16, 12 left in float32" in stored.summary()
    for shown in (converted.summary(), stored._repr_html_(), stored.plan.summary()):
        assert (
            "Calibrated" not in shown and "Integer" not in shown and "nodes quantized" not in shown
        )


@pytest.mark.parametrize("data", [False, True])
def test_a_branch_too_small_for_float16_needs_no_float32_where_it_is_added_to_more(data):
    weights = {"w": weight(16, 16), "tiny": weight(16, 16) * np.float32(1e-9)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("MatMul", ["a", "tiny"], ["b"], "branch"),
        node("Add", ["a", "b"], ["y"], "sum"),
    ]
    ends = [info("x", [4, 16])], [info("y", [4, 16])]
    for last, count in (("y", 0), ("b", 1)):  # what is handed out itself keeps its digits
        model = build(nodes, ends[0], [info(last, [4, 16])], weights)
        samples = {"data": make_samples(model, 2)} if data else {}
        result = bitwright.quantize(model, recipe="float16", **samples)
        kept = [name for name, one in result.plan.nodes.items() if one.action != "quantize"]
        assert len(kept) >= count and ("branch" in kept) == bool(count)


def test_squares_of_an_rms_norm_do_not_overflow_and_take_no_casts():
    constants = {"axes": np.array([-1]), "eps": np.float32(1e-6), "w": weight(64, 64)}
    nodes = [
        node("Mul", ["x", "x"], ["xx"]),
        node("ReduceMean", ["xx", "axes"], ["v"]),
        node("Add", ["v", "eps"], ["e"]),
        node("Sqrt", ["e"], ["s"]),
        node("Div", ["x", "s"], ["n"]),
        node("MatMul", ["n", "w"], ["y"]),
    ]
    model = build(nodes, [info("x", [8, 64])], [info("y", [8, 64])], constants, opset=18)
    random = np.random.default_rng(0)
    large = [{"x": random.normal(0, 3000, (8, 64)).astype(np.float32)} for _ in range(2)]
    for recipe in ("float16", {"base": "int8-weights", "float16": "cast"}):
        result = bitwright.quantize(model, recipe=recipe)
        assert [n.op_type for n in result.model.graph].count("Cast") == 2
        assert bitwright.compare(model, result.model, data=large).outputs[0].sqnr > 35
