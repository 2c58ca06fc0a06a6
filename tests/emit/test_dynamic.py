"""Dynamic models compute what the formula says, whatever the operator, type and channels.

Here an activation has one scale; `test_dynamic_rows` has those with one for each row.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.dynamic_models import (
    DYNAMIC_MODELS,
    dynamic_samples,
    make_branches,
    make_conv,
    make_gather,
    make_gemm,
    make_lstm,
    make_matmul,
)
from support.models import (
    FLOAT16,
    as_proto,
    build,
    constants_of,
    element_types,
    info,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    quality,
    retype,
    run,
    weight,
)
from support.plans import edited

import bitwright
from bitwright import PlanError
from bitwright.numerics.types import qtype as number_type
from bitwright.recipe import Recipe, Selection


def dynamic(model, **changes):
    """Quantize without data; the recipe's clean-ups stay off so that nodes keep their names."""
    recipe = Recipe(mode="dynamic", **{"dynamic_scale": "tensor", "optimize": False, **changes})
    return as_proto(bitwright.quantize(model, recipe=recipe, force_dynamic=True).model)


def measured(x):
    """Return what DynamicQuantizeLinear gives, by ONNX's formula: integers, scale, zero point."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    integers = np.clip(np.rint(x / scale) + zero, 0, 255)
    return integers, scale, zero


def read_back(x):
    integers, scale, zero = measured(x)
    return (integers.astype(np.float64) - zero) * np.float64(scale)


def stored(model, name, *, turn=None):
    """Return a stored weight as the floats that it stands for, in float64."""
    constants = constants_of(model)
    integers = constants[f"{name}_quantized"].astype(np.float64)
    if turn is not None:
        integers = integers.transpose(turn)
    scale = constants[f"{name}_scale"].astype(np.float64)
    return (integers - constants[f"{name}_zero_point"]), scale


TYPES = [("int8", False), ("int8", True), ("uint8", False), ("uint8", True)]


@pytest.mark.parametrize("name", DYNAMIC_MODELS)
@pytest.mark.parametrize(("qtype", "per_channel"), TYPES)
@pytest.mark.sampled(34)
def test_every_operator_runs_and_stays_near_float(name, qtype, per_channel):
    model = DYNAMIC_MODELS[name]()
    recipe = {"mode": "dynamic", "weight": qtype, "per_channel": per_channel}
    samples = dynamic_samples(model)
    result = bitwright.quantize(model, recipe=recipe, data=samples, force_dynamic=True)
    assert result.quantized
    assert result.samples == len(samples)
    assert quality(model, result.model, samples) > 30


def test_the_formula_of_the_runtime_is_the_one_tested_against():
    rng = np.random.default_rng(0)
    model = build(
        [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])],
        {"x": ["n"]},
        [info("q", ["n"], TensorProto.UINT8), info("s", []), info("z", [], TensorProto.UINT8)],
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shift in (0, -3, 3):
        x = rng.standard_normal(1000).astype(np.float32) + np.float32(shift)
        integers, scale, zero = session.run(None, {"x": x})
        wanted = measured(x)
        assert scale == wanted[1]
        assert zero == wanted[2]
        # One in a while a value lies on the edge of two levels, and kernels divide differently.
        assert np.mean(integers != wanted[0]) < 0.01


@pytest.mark.parametrize(("qtype", "per_channel"), TYPES)
def test_a_matmul_is_the_product_of_what_is_stored_and_what_is_measured(qtype, per_channel):
    model = make_matmul()
    quantized = dynamic(model, weight=number_type(qtype), per_channel=per_channel)
    [sample] = dynamic_samples(model, 1)
    integers, scale = stored(quantized, "w")
    wanted = read_back(sample["x"]) @ (integers * scale)
    np.testing.assert_allclose(run(quantized, sample)[0], wanted, rtol=1e-4, atol=1e-5)
    # Per channel: the largest weight of each column is at the end of the range.
    if per_channel:
        assert scale.shape == (8,)
        assert (np.abs(integers).max(axis=0) == 127).all() or qtype == "uint8"


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_gemm_is_rewritten_exactly(per_channel):
    for attributes in (
        {},
        {"transB": 1},
        {"transA": 1},
        {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1},
        {"beta": 0.0},
    ):
        model = make_gemm(**attributes)
        quantized = dynamic(model, per_channel=per_channel)
        [sample] = dynamic_samples(model, 1)
        integers, scale = stored(quantized, "w")
        x = read_back(sample["x"])
        x = x.T if attributes.get("transA") else x
        # alpha is folded into the stored weight, beta into C.
        wanted = x @ (integers * scale) + attributes.get("beta", 1.0) * constants_of(model)["c"]
        np.testing.assert_allclose(run(quantized, sample)[0], wanted, rtol=1e-4, atol=1e-4)
        assert "Gemm" not in ops(quantized)


def test_alpha_and_beta_that_nothing_constant_can_take_are_multiplied_at_run_time():
    nodes = [node("Gemm", ["x", "b", "c"], ["y"], name="op", alpha=0.5, beta=3.0)]
    model = build(nodes, {"x": [4, 16], "b": [16, 5], "c": [4, 5]}, {"y": [4, 5]})
    quantized = dynamic(model, select=Selection(constant_weights_only=False))
    [sample] = dynamic_samples(model, 1)
    wanted = 0.5 * read_back(sample["x"]) @ read_back(sample["b"]) + 3 * sample["c"]
    np.testing.assert_allclose(run(quantized, sample)[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("square", [True, False])
def test_gemms_that_share_a_turned_weight_are_all_right(square):
    """Each is exact, and the turned copy is stored once (W8 of the peer)."""
    wide = 16 if square else 5
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="one", transB=1),
        node("Gemm", ["z", "w"], ["b"], name="two", transB=1),
        node("Gemm", ["v", "w"], ["c"], name="three"),
    ]
    inputs = {"x": [4, 16], "z": [4, 16], "v": [4, wide]}
    outputs = {"a": None, "b": None, "c": None}
    model = build(nodes, inputs, outputs, {"w": normal(wide, 16)})
    samples = dynamic_samples(model)
    for per_channel in (False, True):
        quantized = dynamic(model, per_channel=per_channel)
        assert quality(model, quantized, samples) > 35
        turned = {item.input[1] for item in quantized.graph.node if item.name.startswith("one_")}
        turned |= {item.input[1] for item in quantized.graph.node if item.name.startswith("two_")}
        products = nodes_by_name(quantized)
        assert products["one_MatMul_quant"].input[1] == products["two_MatMul_quant"].input[1]
        assert products["three_MatMul_quant"].input[1] != products["one_MatMul_quant"].input[1]
        assert "w" not in constants_of(quantized)


@pytest.mark.parametrize(("qtype", "per_channel"), TYPES)
def test_a_conv_scales_its_channels_and_adds_its_bias_in_float(qtype, per_channel):
    model = make_conv(pads=[1, 1, 1, 1], strides=[2, 1])
    quantized = dynamic(model, weight=number_type(qtype), per_channel=per_channel)
    [sample] = dynamic_samples(model, 1)
    integers, scale = stored(quantized, "w")
    twin = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in twin.graph.initializer:
        if tensor.name == "w":
            shaped = scale if scale.ndim == 0 else scale.reshape(-1, 1, 1, 1)
            array = (integers * shaped).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    wanted = run(twin, {"x": read_back(sample["x"]).astype(np.float32)})[0]
    np.testing.assert_allclose(run(quantized, sample)[0], wanted, rtol=1e-3, atol=1e-4)
    assert constants_of(quantized)["w_zero_point"].shape == ()
    # Before 1.24, ONNX Runtime's ConvInteger has no kernel for weights of int8.
    assert constants_of(quantized)["w_quantized"].dtype == np.uint8


@pytest.mark.parametrize(("qtype", "per_channel"), TYPES)
@pytest.mark.parametrize("directions", [1, 2])
def test_an_lstm_has_a_scale_for_each_direction_or_for_each_row(qtype, per_channel, directions):
    model = make_lstm(directions)
    quantized = dynamic(model, weight=number_type(qtype), per_channel=per_channel)
    constants = constants_of(quantized)
    shape = (directions, 32) if per_channel else (directions,)
    for name in "WR":
        assert constants[f"{name}_scale"].shape == shape
        assert constants[f"{name}_zero_point"].shape == shape
        float_weight = constants_of(model)[name]
        integers = constants[f"{name}_quantized"].transpose(0, 2, 1).astype(np.float64)
        rows = (slice(None), slice(None), None) if per_channel else (slice(None), None, None)
        scale = constants[f"{name}_scale"][rows]
        zero = constants[f"{name}_zero_point"].astype(int)[rows]
        assert (np.abs((integers - zero) * scale - float_weight) <= scale * 0.51).all()
    lstm = nodes_by_name(quantized)["op_quant"]
    assert (lstm.op_type, lstm.domain, list(lstm.output)) == (
        "DynamicQuantizeLSTM",
        "com.microsoft",
        ["y", "", "c"],
    )


def test_rows_of_an_lstm_that_differ_in_size_gain_from_scales_of_their_own():
    model = make_lstm()
    samples = dynamic_samples(model)
    rows, directions = (dynamic(model, per_channel=flag) for flag in (True, False))
    assert quality(model, rows, samples) > quality(model, directions, samples) + 3


def test_a_table_is_stored_in_uint8_and_moves_as_integers():
    model = make_gather()
    quantized = dynamic(model)
    assert ops(quantized)["DynamicQuantizeLinear"] == 0
    assert ops(quantized)["DequantizeLinear"] == 1
    assert element_types(quantized)["table_quantized"] == TensorProto.UINT8
    assert nodes_by_name(quantized)["first_quant"].input[0] == "rows_quantized"
    assert nodes_by_name(quantized)["turn"].input[0] == "rows_quantized"
    assert nodes_by_name(quantized)["second_quant"].input[0] == "turned_quantized"
    [sample] = dynamic_samples(model, 1)
    integers, scale = stored(quantized, "table")
    np.testing.assert_allclose(
        run(quantized, sample, ["out"])[0], (integers * scale)[sample["ids"]], rtol=1e-5
    )


def test_an_activation_is_measured_once_for_all_its_readers():
    quantized = dynamic(make_transformer())
    measured_tensors = [
        item.input[0] for item in quantized.graph.node if item.op_type == "DynamicQuantizeLinear"
    ]
    assert len(set(measured_tensors)) == len(measured_tensors) == 4
    products = nodes_by_name(quantized)
    assert {products[f"{p}_matmul_quant"].input[0] for p in "qkv"} == {"x_quantized"}


def test_a_weight_is_stored_once_for_all_its_readers():
    nodes = [node("MatMul", [x, "w"], [y], name=f"to_{y}") for x, y in ("ab", "bc", "cd")]
    model = build(nodes, {"a": [2, 16]}, {"d": [2, 16]}, {"w": weight(16, 16)})
    quantized = dynamic(model, per_channel=True)
    assert sum(name.startswith("w_quantized") for name in constants_of(quantized)) == 1
    assert quality(model, quantized, dynamic_samples(model)) > 25


def test_reduced_range_leaves_a_bit_free_in_weights_but_not_in_tables():
    constants = constants_of(dynamic(make_gather(), reduce_range=True))
    assert np.abs(constants["w_quantized"].astype(int)).max() == 64
    assert constants["table_quantized"].max() == 255


def test_products_of_two_activations_only_when_asked_for():
    model = make_transformer()
    assert ops(dynamic(model))["MatMul"] == 2
    everything = dynamic(model, select=Selection(constant_weights_only=False))
    assert ops(everything)["MatMul"] == 0
    assert quality(model, everything, make_samples(model)) > 25


def test_a_transpose_between_integers_moves_integers():
    nodes = [
        node("MatMul", ["x", "w"], ["y"], name="first"),
        node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
        node("MatMul", ["t", "v"], ["z"], name="second"),
    ]
    constants = {"w": weight(16, 4), "v": weight(3, 5)}
    model = build(nodes, {"x": [3, 16]}, {"y": None, "z": None}, constants)
    quantized = dynamic(model)
    assert ops(quantized)["DynamicQuantizeLinear"] == 1
    assert ops(quantized)["DequantizeLinear"] == 0
    assert quality(model, quantized, dynamic_samples(model)) > 30


@pytest.mark.parametrize("per_channel", [False, True])
def test_bodies_of_an_if_are_quantized_when_asked_for(per_channel):
    model = make_branches()
    quantized = dynamic(model, per_channel=per_channel, select=Selection(subgraphs=True))
    choice = next(item for item in quantized.graph.node if item.op_type == "If")
    for attribute in choice.attribute:
        inside = [item.op_type for item in attribute.g.node]
        assert inside.count("MatMulInteger") == 2
        assert "MatMul" not in inside
    # Both branches read x, so it is measured outside, once.
    assert ops(quantized)["DynamicQuantizeLinear"] == 1
    assert quality(model, quantized, dynamic_samples(model, 8)) > 30


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_bodies_of_loops_are_quantized_when_asked_for(kind):
    w = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], weight(8, 8).reshape(-1))
    product = node("MatMul", ["h", "w"], ["next"], name="step")
    if kind == "Loop":
        body = helper.make_graph(
            [node("Identity", ["go"], ["still"]), product],
            "body",
            [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("h", [2, 8])],
            [info("still", [], TensorProto.BOOL), info("next", [2, 8])],
            [w],
        )
        outer = node("Loop", ["count", "", "x"], ["y"], name="loop", body=body)
        model = build([outer], {"x": [2, 8]}, {"y": [2, 8]}, {"count": np.array(3)})
    else:
        body = helper.make_graph(
            [product, node("Add", ["next", "item"], ["seen"])],
            "body",
            [info("h", [2, 8]), info("item", [2, 8])],
            [info("next", [2, 8]), info("seen", [2, 8])],
            [w],
        )
        outer = node(
            "Scan", ["x", "items"], ["y", "all"], name="scan", body=body, num_scan_inputs=1
        )
        inputs = {"x": [2, 8], "items": [3, 2, 8]}
        model = build([outer], inputs, {"y": [2, 8], "all": [3, 2, 8]})
    quantized = dynamic(model, select=Selection(subgraphs=True))
    [loop] = [item for item in quantized.graph.node if item.op_type == kind]
    inside = [item.op_type for a in loop.attribute if a.name == "body" for item in a.g.node]
    assert "MatMulInteger" in inside
    assert "DynamicQuantizeLinear" in inside
    assert quality(model, quantized, dynamic_samples(model)) > 25


def test_float16_models_run_and_keep_their_inputs_and_outputs():
    for make in (make_mlp, make_transformer, make_conv, make_lstm):
        model = retype(make(), np.float16, FLOAT16)
        quantized = dynamic(model)
        for value in (*quantized.graph.input, *quantized.graph.output):
            assert value.type.tensor_type.elem_type == FLOAT16
        samples = make_samples(model, 3)
        samples = [{k: v.astype(np.float16) for k, v in s.items()} for s in samples]
        assert quality(model, quantized, samples) > 30


def test_weights_in_constant_nodes_and_in_inputs_are_stored_as_integers():
    model = make_matmul()
    held = model.graph.initializer.pop()
    model.graph.node.insert(0, node("Constant", [], ["w"], value=held))
    assert element_types(dynamic(model))["w_quantized"] == TensorProto.INT8
    model = make_matmul()
    model.graph.input.append(info("w", [16, 8]))
    quantized = dynamic(model)
    assert [value.name for value in quantized.graph.input] == ["x"]
    assert element_types(quantized)["w_quantized"] == TensorProto.INT8


def test_names_that_are_taken_already_are_left_to_their_owners():
    nodes = [
        node("MatMul", ["x", "x_scale"], ["h"], name="x_QuantizeLinear"),
        node("MatMul", ["h", "w_quantized"], ["y"], name="op"),
    ]
    constants = {"x_scale": weight(16, 16), "w_quantized": weight(16, 4, seed=1)}
    model = build(nodes, {"x": [3, 16]}, {"y": [3, 4]}, constants)
    assert quality(model, dynamic(model), dynamic_samples(model)) > 30


def test_an_unused_and_a_given_out_result_keep_their_names():
    nodes = [node("MatMul", ["x", "w"], ["h"], name="a"), node("Relu", ["h"], ["y"], name="b")]
    model = build(nodes, {"x": [3, 16]}, {"h": [3, 8], "y": [3, 8]}, {"w": weight(16, 8)})
    quantized = dynamic(model)
    assert [value.name for value in quantized.graph.output] == ["h", "y"]
    assert quality(model, quantized, dynamic_samples(model)) > 30


def test_external_weights_are_released_after_use(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(make_matmul((64, 64), (3, 64)), path, save_as_external_data=True, size_threshold=0)
    result = bitwright.quantize(path, tmp_path / "quantized.onnx", recipe="int8-dynamic")
    assert result.size < result.float_size / 2
    assert quality(path, tmp_path / "quantized.onnx", dynamic_samples(onnx.load(path))) > 30


def test_a_plan_that_lost_an_entry_or_asks_for_the_impossible_is_refused():
    model = make_mlp()
    plan = bitwright.make_plan(model, recipe={"base": "int8-dynamic", "dynamic_scale": "tensor"})
    first = plan.nodes["first"]
    plan = edited(plan, nodes={"first": msgspec.structs.replace(first, inputs=(None, None))})
    with pytest.raises(PlanError, match=r"constant 'w1' has no entry"):
        bitwright.apply_plan(plan, model)
    plan = edited(plan, nodes={"first": first})
    rectifier = type(first)(op="Relu", action="quantize", inputs=(None,), outputs=(None,))
    plan = edited(plan, nodes={"act": rectifier})
    with pytest.raises(PlanError, match=r"'act' \(Relu\) cannot be quantized in a dynamic model"):
        bitwright.apply_plan(plan, model)


def test_two_runs_write_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        bitwright.quantize(make_transformer(), tmp_path / name, recipe="int8-dynamic")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
