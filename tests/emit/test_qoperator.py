"""Integer operators: the right one for each op, the same numbers as Q/DQ pairs give."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.dynamic_models import make_embedding
from support.models import (
    FLOAT16,
    FLOAT32_MIN,
    as_proto,
    build,
    constants_of,
    element_types,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    producer_of,
    quality,
    quantize_static_in,
    retype,
    run,
    run_plain,
    weight,
)
from support.op_models import OP_MODELS, op_samples
from support.quantizing import quantize_on

import bitwright
from bitwright import Override, Placement, Selection
from bitwright.compat.onnxruntime import QuantFormat, QuantType
from bitwright.decide.ops import RULES
from bitwright.emit.qlinear_rules import INTEGER_OPS
from bitwright.errors import RecipeError
from bitwright.numerics.types import INT8, INT16, UINT8, UINT16
from bitwright.recipe import Emulation

# Op type -> what stands in its place; None: nothing, its quantizer does its work.
EXPECTED = {op: RULES[op].integer_op for op in INTEGER_OPS} | {"Relu": None, "Clip": None}


def quantize_ops(model, samples=None, **options):
    """Quantize every op that has a rule, wherever it stands."""
    options.setdefault("place", Placement(isolated=True, float_bias_add=False))
    options.setdefault("select", Selection(op_types=tuple(OP_MODELS)))
    options.setdefault("optimize", False)
    options.setdefault("format", "qoperator")
    return quantize_on(op_samples(model) if samples is None else samples, model, **options)


def expose(model, tensor):
    """Return a copy whose only output is this tensor."""
    copy = onnx.ModelProto.FromString(as_proto(model).SerializeToString())
    del copy.graph.output[:]
    copy.graph.output.append(onnx.ValueInfoProto(name=tensor))
    return copy


# Each operator ------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("op_type", INTEGER_OPS)
@pytest.mark.sampled(62)
def test_each_op_becomes_its_integer_op(op_type, activation, per_channel):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    result = quantize_ops(model, samples, activation=activation, per_channel=per_channel)
    found = ops(result)
    if EXPECTED[op_type] is None:
        assert found[op_type] == 0
    else:
        assert found[EXPECTED[op_type]] >= 1
    assert not result.plan.notes
    onnx.checker.check_model(as_proto(result))
    assert quality(model, result, samples) > (20 if op_type == "TopK" else 30)


def as_pairs(result, model):
    """Write the plan of a result as Q/DQ pairs."""
    recipe = result.plan.recipe.replace(format="qdq")
    return bitwright.apply_plan(msgspec.structs.replace(result.plan, recipe=recipe), model)


@pytest.mark.parametrize("activation", [UINT8, INT8], ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "op_type", sorted(set(INTEGER_OPS) - {"ArgMax", "EmbedLayerNormalization"})
)
@pytest.mark.sampled(58)
def test_each_op_gives_the_integers_of_the_pairs_within_one_step(op_type, activation, symmetric):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    options = {"activation": activation, "activation_symmetric": symmetric, "per_channel": True}
    integers = quantize_ops(model, samples, **options)
    pairs = as_pairs(integers, model)
    theirs = run_plain(expose(pairs, "k_QuantizeLinear_Output"), samples)
    mine = run_plain(expose(integers, "k_quantized"), samples)
    for (one,), (two,) in zip(mine, theirs, strict=True):
        assert one.dtype == two.dtype == activation.dtype
        assert np.abs(one.astype(int) - two.astype(int)).max() <= 1


@pytest.mark.parametrize("segments", [False, True])
def test_an_embedding_is_an_integer_one_with_or_without_a_mask(segments):
    model = make_embedding(segments=segments)
    model.graph.output[0].name = "z"
    model.graph.node.append(node("MatMul", ["y", "after"], ["z"], name="after"))
    model.graph.initializer.append(numpy_helper.from_array(weight(16, 4), "after"))
    del model.graph.output[0].type.tensor_type.shape.dim[2]
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 4
    random = np.random.default_rng(0)
    samples = [{"ids": random.integers(0, 20, (2, 6)).astype(np.int32)} for _ in range(4)]
    for sample in samples if segments else ():
        sample["mask"] = np.ones((2, 6), np.int32)
    result = quantize_ops(model, samples)
    assert "QEmbedLayerNormalization" in ops(result)
    assert quality(model, result, samples) > 25


@pytest.mark.parametrize("op_type", ["ArgMax", "TopK"])
def test_indices_are_those_of_the_pairs(op_type):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    integers = quantize_ops(model, samples)
    mine, theirs = (
        run_plain(expose(result, "where"), samples)
        for result in (integers, as_pairs(integers, model))
    )
    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("op_type", sorted(set(OP_MODELS) - set(INTEGER_OPS)))
def test_ops_without_an_integer_form_stay_float_and_say_so(op_type):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    result = quantize_ops(model, samples)
    planned = result.plan.nodes["op"]
    assert planned.action == "float"
    assert f"no integer {op_type}" in planned.reason
    assert ops(result)[op_type] == 1
    assert quality(model, result, samples) > 30


# Attributes and corners ---------------------------------------------------------------------


def between_convs(nodes, constants=None, channels=8, size=(6, 6), opset=17, out=None):
    """Put nodes that turn `h` into `k` between two convolutions."""
    first = node("Conv", ["x", "w_in"], ["h"], name="before", pads=[1] * 2 * len(size))
    last = node("Conv", ["k", "w_out"], ["y"], name="after")
    rank = len(size)
    constants = {
        "w_in": weight(8, 3, *(3,) * rank, seed=1),
        "w_out": weight(4, channels, *(1,) * rank, seed=2),
        **(constants or {}),
    }
    return build([first, *nodes, last], {"x": [1, 3, *size]}, {"y": None}, constants, opset=opset)


def assert_like_pairs(model, *, least=30, samples=None, **options):
    """Quantize both ways; the results agree within one step and are close to float."""
    samples = make_samples(model) if samples is None else samples
    integer = quantize_ops(model, samples, **options)
    pairs = quantize_ops(model, samples, **{**options, "format": "qdq"})
    assert quality(model, integer, samples) > least
    gap = quality(model, integer, samples) - quality(model, pairs, samples)
    assert gap > -0.5
    return integer


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ],
    ids=str,
)
def test_pools_keep_their_attributes(op_type, attributes):
    if op_type == "MaxPool":
        attributes = {k: v for k, v in attributes.items() if k != "count_include_pad"}
    model = between_convs([node(op_type, ["h"], ["k"], name="op", **attributes)])
    for activation in (UINT8, INT8):
        result = assert_like_pairs(model, activation=activation)
        assert ops(result)[EXPECTED[op_type]] == 1


@pytest.mark.parametrize("size", [(12,), (4, 4, 4)], ids=["1d", "3d"])
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool", "GlobalAveragePool"])
def test_pools_of_other_ranks_run(op_type, size):
    attributes = {} if op_type.startswith("Global") else {"kernel_shape": [2] * len(size)}
    model = between_convs([node(op_type, ["h"], ["k"], name="op", **attributes)], size=size)
    result = assert_like_pairs(model)
    assert ops(result)[EXPECTED[op_type]] == 1


def test_dilations_of_one_are_left_out():
    attributes = {"kernel_shape": [2, 2], "dilations": [1, 1]}
    model = between_convs([node("AveragePool", ["h"], ["k"], name="op", **attributes)], opset=19)
    result = quantize_ops(model, make_samples(model))
    assert ops(result)["QLinearAveragePool"] == 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("activation", [UINT8, INT8], ids=str)
def test_padding_fills_in_what_stands_for_zero(mode, activation):
    model = between_convs(
        [node("Pad", ["h", "by"], ["k"], name="op", mode=mode)],
        {"by": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
    )
    result = assert_like_pairs(model, activation=activation)
    assert element_types(result)["h_zero_point"] == activation.onnx_type
    pad = nodes_by_name(result)["op"]
    assert pad.input[0] == "h_quantized"
    if mode == "constant":
        assert constants_of(result)[pad.input[2]] == constants_of(result)["h_zero_point"]


def test_padding_with_a_value_outside_the_range_is_not_clipped():
    model = between_convs(
        [node("Pad", ["h", "by", "value"], ["k"], name="op")],
        {"by": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "value": np.array(40.0, np.float32)},
    )
    assert_like_pairs(model)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resizing_is_within_a_step_of_float_resizing(mode):
    model = between_convs(
        [node("Resize", ["h", "", "by"], ["k"], name="op", mode=mode)],
        {"by": np.array([1, 1, 2, 2], np.float32)},
    )
    samples = make_samples(model)
    assert quality(model, quantize_ops(model, samples), samples) > 30


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("opset", [13, 17])
def test_softmax_is_taken_along_its_axis(axis, opset):
    model = between_convs([node("Softmax", ["h"], ["k"], name="op", axis=axis)], opset=opset)
    result = assert_like_pairs(model, least=20, rounding="nearest")
    found = nodes_by_name(result)["op_quant"]
    assert {a.name: a.i for a in found.attribute} == {"axis": axis, "opset": opset}


def test_a_softmax_of_one_element_has_no_integer_form():
    # The runtime's gives 0 for it, where 1 is right.
    model = between_convs([node("Softmax", ["h"], ["k"], name="op", axis=0)])
    assert nodes_by_name(quantize_ops(model, make_samples(model)))["op"].op_type == "Softmax"


def test_operands_broadcast():
    model = between_convs(
        [
            node("Mul", ["h", "gate"], ["m"], name="op"),
            node("Add", ["shift", "m"], ["k"], name="b"),
        ],
        {"gate": normal(8, 1, 1, seed=5), "shift": normal(1, seed=6)},
    )
    result = assert_like_pairs(model)
    assert ops(result)["QLinearMul"] == ops(result)["QLinearAdd"] == 1


def test_unused_and_float_outputs_of_a_split():
    model = between_convs(
        [
            node("Split", ["h", "parts"], ["k", "unused", "s"], name="op", axis=1),
            node("Tanh", ["s"], ["t"], name="tanh"),
        ],
        {"parts": np.array([4, 2, 2])},
        channels=4,
    )
    model.graph.output.append(onnx.ValueInfoProto(name="t"))
    assert_like_pairs(model)


def test_a_gather_of_a_table_reads_integers():
    ids = onnx.helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3])
    nodes = [
        node("Gather", ["table", "ids"], ["k"], name="op"),
        node("MatMul", ["k", "w"], ["y"], name="after"),
    ]
    model = build(nodes, [ids], {"y": [2, 3, 4]}, {"table": normal(20, 16), "w": weight(16, 4)})
    result = assert_like_pairs(model, samples=op_samples(model))
    assert element_types(result)["table_quantized"] == TensorProto.UINT8
    assert ops(result) == {"Gather": 1, "QLinearMatMul": 1, "DequantizeLinear": 1}


# Products with a float side ------------------------------------------------------------------


def test_a_float_result_of_a_matmul_is_an_integer_product_with_its_scale():
    model = make_mlp()
    samples = make_samples(model)
    result = bitwright.quantize(
        model, data=samples, recipe={"base": "int8-per-channel", "format": "qoperator"},
        holdout=False,
    )  # fmt: skip
    # To the first a bias is added in float, and the result of the second leaves the model.
    assert ops(result)["MatMulInteger"] == 2
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Gemm"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_unquantized_outputs_come_from_integer_products(op_type, per_channel):
    model = OP_MODELS[op_type]()
    result = assert_like_pairs(
        model,
        place=Placement(isolated=True, float_bias_add=False, unquantized_outputs=(op_type,)),
        per_channel=per_channel,
        samples=op_samples(model),
    )
    written = {"Conv": "ConvInteger", "MatMul": "MatMulInteger", "Gemm": "QGemm"}[op_type]
    assert ops(result)[written] >= 1
    assert ops(result)[op_type] == 0
    if op_type == "Conv":  # whose kernel for int8 came with ONNX Runtime 1.24, and is slow
        model = result.to_proto()
        [product] = [node for node in model.graph.node if node.op_type == "ConvInteger"]
        stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        assert {stored[product.input[i]] for i in (1, 3)} == {TensorProto.UINT8}


@pytest.mark.parametrize("op_type", ["Conv", "Gemm"])
def test_float_biases_are_added_in_float(op_type):
    model = OP_MODELS[op_type]()
    result = assert_like_pairs(model, quantize_bias=False, samples=op_samples(model))
    assert ops(result)["Add"] == 1
    assert ops(result)[op_type] == 0


def test_an_output_is_not_rounded_where_what_makes_it_stays_float():
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Transpose", ["c"], ["y"], name="move", perm=[0, 2, 3, 1]),
    ]
    shape = [1, 3, 4, 4]
    model = build(nodes, {"x": shape}, {"y": [1, 4, 4, 3]}, {"w": weight(3, 3, 1, 1)})
    samples = make_samples(model, 2)
    coarse = {"y": Override(scale=0.5, zero_point=128)}
    result = quantize_on(samples, model, format="qoperator", overrides=coarse, optimize=False)
    assert any("left Transpose x1 float between Q/DQ pairs" in one for one in result.plan.notes)
    assert ops(result)["QuantizeLinear"] == 1  # of the input
    assert [value.name for value in result.model.graph.outputs] == ["y"]
    fine = quantize_on(samples, model, format="qoperator", optimize=False)
    for one, two in zip(run_plain(result, samples), run_plain(fine, samples), strict=True):
        np.testing.assert_array_equal(one[0], two[0])


@pytest.mark.parametrize("weights", [UINT8, INT8], ids=str)
def test_products_of_two_activations_and_of_a_constant_on_the_left(weights):
    nodes = [
        node("MatMul", ["w", "x"], ["left"], name="left"),
        node("MatMul", ["left", "x"], ["y"], name="both"),
    ]
    model = build(nodes, {"x": [2, 8, 8]}, {"y": [2, 8, 8]}, {"w": weight(8, 8)})
    result = assert_like_pairs(model, weight=weights)
    assert ops(result)["MatMul"] == 0
    mixed = weights == INT8  # no kernel takes int8 on the left and uint8 on the right
    assert ops(result)["MatMulInteger"] == (1 if mixed else 0)


def test_a_gemm_with_an_addend_of_run_time_adds_it():
    nodes = [
        node("Gemm", ["x", "w", "c"], ["g"], name="gemm"),
        node("MatMul", ["g", "v"], ["y"], name="head"),
    ]
    model = build(
        nodes,
        {"x": [4, 16], "c": [8]},
        {"y": [4, 4]},
        {"w": weight(16, 8), "v": weight(8, 4)},
    )
    result = assert_like_pairs(model)
    assert ops(result)["QGemm"] == 1


def test_a_bias_with_an_override_is_not_taken_for_one_at_the_products_scale():
    model = OP_MODELS["Conv"]()
    assert_like_pairs(model, overrides={"b": Override(qtype=INT8)}, samples=op_samples(model))


# What others get wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("option", ["CalibTensorRangeSymmetric", "ActivationSymmetric"])
def test_W1_a_symmetric_range_keeps_the_work_of_relu(tmp_path, activation, option):
    model = make_cnn()
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        quant_format=QuantFormat.QOperator,
        activation_type=activation,
        extra_options={option: True},
    )
    # On integers; where activations are symmetric it stays float, as in ONNX Runtime's tool.
    kept = {"CalibTensorRangeSymmetric": "Clip", "ActivationSymmetric": "Relu"}
    assert ops(quantized)[kept[option]] == 2
    assert quality(model, quantized, samples) > 30


@pytest.mark.parametrize(("low", "high"), [(0.5, 6), (-6, -0.5), (0, 6)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_W2_a_clip_is_absorbed_only_where_the_quantizer_clips_so(low, high, symmetric):
    model = between_convs(
        [node("Clip", ["h", "low", "high"], ["k"], name="op")],
        {"low": np.array(low, np.float32), "high": np.array(high, np.float32)},
    )
    result = assert_like_pairs(model, activation_symmetric=symmetric)
    assert ops(result)["Clip"] == (0 if low == 0 and not symmetric else 1)
    assert ops(result)["QuantizeLinear"] == 1


def test_W2_a_relu_whose_input_others_read_too_leaves_it_alone():
    nodes = [
        node("Relu", ["h"], ["r"], name="relu"),
        node("Add", ["h", "r"], ["k"], name="op"),
    ]
    result = assert_like_pairs(between_convs(nodes))
    assert ops(result)["QLinearLeakyRelu"] == 1  # with a slope of 0, since the scales differ
    assert ops(result)["Relu"] == 0


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [{"beta": 2.0}, {"beta": 0.5}, {"alpha": 2.0}, {"alpha": 0.5, "beta": 3.0, "transB": 1}],
    ids=str,
)
def test_W3_W4_alpha_and_beta_of_a_gemm_are_honoured(tmp_path, attributes, per_channel):
    matrix = weight(16, 8, seed=1)
    model = build(
        [node("Gemm", ["x", "w", "c"], ["y"], name="gemm", **attributes)],
        {"x": [4, 16]},
        {"y": [4, 8]},
        {"w": matrix.T.copy() if "transB" in attributes else matrix, "c": normal(8, seed=2)},
    )
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path, model, samples, quant_format=QuantFormat.QOperator, per_channel=per_channel
    )
    assert ops(quantized)["QGemm"] == 1
    assert quality(model, quantized, samples) > 30


@pytest.mark.parametrize("per_channel", [False, True])
def test_W5_a_bias_that_two_convolutions_read_is_stored_for_each(tmp_path, per_channel):
    nodes = [
        node("Conv", ["x", "w1", "b"], ["c1"], name="conv1"),
        node("Conv", ["c1", "w2", "b"], ["c2"], name="conv2"),
    ]
    constants = {
        "w1": weight(8, 3, 1, 1, seed=1) * 10,
        "w2": weight(8, 8, 1, 1, seed=2) * 0.1,
        "b": normal(8, seed=3),
    }
    model = build(nodes, {"x": [1, 3, 6, 6]}, {"c2": [1, 8, 6, 6]}, constants)
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path, model, samples, quant_format=QuantFormat.QOperator, per_channel=per_channel
    )
    biases = [nodes_by_name(quantized)[f"conv{i}_quant"].input[8] for i in (1, 2)]
    assert biases[0] != biases[1]
    assert quality(model, quantized, samples) > 30


def test_W6_a_bias_that_a_reshape_reads_too_is_stored_in_both_ways():
    nodes = [
        node("Conv", ["x", "w1", "b"], ["c"], name="conv"),
        node("Reshape", ["b", "shape"], ["b4"], name="bias_reshape"),
        node("Mul", ["c", "b4"], ["m"], name="gate"),
        node("Conv", ["m", "w2"], ["y"], name="head"),
    ]
    constants = {
        "w1": weight(8, 3, 1, 1, seed=1),
        "w2": weight(8, 8, 1, 1, seed=2),
        "b": normal(8, seed=3),
        "shape": np.array([1, 8, 1, 1]),
    }
    model = build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 8, 6, 6]}, constants)
    result = assert_like_pairs(model)
    assert ops(result)["QLinearMul"] == 1
    assert {"int32", "uint8"} <= {array.dtype.name for array in constants_of(result).values()}


@pytest.mark.parametrize("value", [-10000.0, FLOAT32_MIN, -np.inf])
def test_W9_attention_masks_stay_out_of_the_range_of_the_scores(value):
    mask = np.zeros((1, 1, 1, 6), np.float32)
    mask[..., -2:] = value
    model = make_transformer(mask=mask)
    samples = make_samples(model)
    recipe = {"base": "int8", "format": "qoperator"}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert quality(model, result, samples) > 25


@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
def test_W14_weights_per_channel_are_stored_in_the_type_that_was_asked_for(tmp_path, op_type):
    model = OP_MODELS[op_type]()
    samples = op_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        quant_format=QuantFormat.QOperator,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
    )
    assert element_types(quantized)["w_quantized"] == TensorProto.UINT8
    assert constants_of(quantized)["w_scale"].size > 1
    assert quality(model, quantized, samples) > 30


def test_W17_an_excluded_node_reads_float():
    model = make_cnn()
    samples = make_samples(model)
    result = quantize_ops(model, samples, select=Selection(exclude=("conv2",)))
    assert nodes_by_name(result)["conv2"].op_type == "Conv"
    assert quality(model, result, samples) > 30


# Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": UINT16}, "QOperator holds int8 and uint8 only.*activations.*uint16"),
        ({"weight": INT16}, "QOperator holds int8 and uint8 only.*weights.*int16"),
        ({"overrides": {"h": Override(qtype=INT16)}}, "only, and 'h' is to be int16"),
        ({"block_size": 8}, "QOperator has no blocks; drop block_size"),
        ({"emulate": Emulation(weight_pairs=True)}, "emulate.weight_pairs is about Q/DQ pairs"),
        ({"emulate": Emulation(dedicated_pairs=True)}, "emulate.dedicated_pairs is about"),
        ({"emulate": Emulation(contrib_ops=True)}, "emulate.contrib_ops is about"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_integer_ops_cannot_hold_is_refused_before_data_is_read(options, words):
    def data():
        raise AssertionError("read")
        yield

    with pytest.raises(RecipeError, match=words):
        quantize_ops(make_mlp(), data(), **options)


def test_types_that_no_kernel_takes_together_stay_between_pairs_with_a_note():
    model = make_cnn()
    samples = make_samples(model)
    result = quantize_ops(model, samples, overrides={"c2": Override(qtype=INT8)})
    assert any("no integer Conv from uint8 and int8 to int8" in note for note in result.plan.notes)
    assert quality(model, result, samples) > 30
    again = bitwright.apply_plan(result.plan, model)
    assert again.plan.notes == result.plan.notes


# Whole models -------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [UINT8, INT8], ids=str)
def test_a_convolutional_model_is_all_integers(activation, per_channel):
    model = make_cnn()
    samples = make_samples(model)
    result = quantize_ops(model, samples, activation=activation, per_channel=per_channel)
    assert ops(result) == {
        "QuantizeLinear": 1,
        "QLinearConv": 2,
        "MaxPool": 1,
        "QLinearAdd": 1,
        "QLinearGlobalAveragePool": 1,
        "Flatten": 1,
        "QGemm": 1,
        "DequantizeLinear": 1,
    }
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize("recipe", ["int8", "int8-per-channel", "int8-symmetric"])
def test_a_transformer_runs_as_integers_with_float_norms(recipe):
    model = make_transformer()
    samples = make_samples(model)
    chosen = {"base": recipe, "select": {"constant_weights_only": False}}
    both = {
        f: bitwright.quantize(model, data=samples, recipe={**chosen, "format": f}, holdout=False)
        for f in ("qoperator", "qdq")
    }
    found = ops(both["qoperator"])
    assert found["MatMul"] == 0
    assert found["LayerNormalization"] == 2
    assert quality(model, both["qoperator"], samples) > quality(model, both["qdq"], samples) - 0.5


def test_the_demo_keeps_its_answers():
    demo = bitwright.load_demo()
    recipe = {"base": "int8-per-channel", "format": "qoperator"}
    result = bitwright.quantize(demo.model_path, data=demo.calibration[:64], recipe=recipe)
    assert result.outputs[0].agreement == 1
    assert result.outputs[0].sqnr > 25
    assert not {"Conv", "Gemm", "MatMul"} & set(ops(result))


def test_names_are_those_that_scripts_look_for():
    result = quantize_ops(make_cnn())
    names = nodes_by_name(result)
    assert names["conv1_quant"].input[0] == "x_quantized"
    assert names["pool1"].output[0] == "p1_quantized"
    assert names["fc_quant"].output[0] == "y_quantized"
    assert producer_of(result, "y").name == "y_DequantizeLinear"


def test_half_float_models_run_as_integers_behind_half_float_inputs_and_outputs():
    model = retype(make_cnn(opset=19), np.float16, FLOAT16)
    samples = make_samples(model)
    result = quantize_ops(model, samples, per_channel=True)
    assert ops(result)["QLinearConv"] == 2
    assert run(result, samples[0])[0].dtype == np.float16
    assert quality(model, result, samples) > 30


def test_a_model_of_many_consumers_keeps_float_readers_right():
    """Tensors that float ops read beside integer ones, outputs in the middle, two outputs."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], name="conv1"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Tanh", ["r"], ["t"], name="tanh"),
        node("Conv", ["r", "w2"], ["k"], name="conv2"),
        node("Add", ["k", "t"], ["y"], name="sum"),
    ]
    constants = {"w1": weight(8, 3, 1, 1, seed=1), "w2": weight(8, 8, 1, 1, seed=2)}
    model = build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 8, 6, 6], "r": [1, 8, 6, 6]}, constants)
    for isolated in (False, True):
        place = Placement(isolated=isolated)
        assert_like_pairs(model, place=place, select=Selection())


def test_a_dropped_relu_also_holds_for_float_readers_of_a_float_product():
    """The convolution cannot be an integer one, and still its result is clipped for everyone."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], name="conv1"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Tanh", ["r"], ["y"], name="tanh"),
    ]
    model = build(nodes, {"x": [1, 3, 6, 6]}, {"y": None}, {"w1": weight(8, 3, 1, 1, seed=1)})
    result = quantize_ops(
        model, make_samples(model), overrides={"r": Override(qtype=INT8)}, select=Selection()
    )
    assert ops(result)["Relu"] == 0
    assert min(run(result, make_samples(model)[0])[0].min(), 0) == 0


def test_pairs_in_subgraphs_become_integer_ops():
    def branch(name, seed):
        w = numpy_helper.from_array(weight(16, 16, seed=seed), f"{name}_w")
        body = [node("MatMul", ["x", f"{name}_w"], [f"{name}_y"], name=f"{name}_product")]
        out = onnx.helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 16])
        return onnx.helper.make_graph(body, name, [], [out], [w])

    nodes = [
        node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        node("Greater", ["s", "zero"], ["yes"], name="greater"),
        node(
            "If", ["yes"], ["y"], name="if", then_branch=branch("a", 1), else_branch=branch("b", 2)
        ),
    ]
    model = build(nodes, {"x": [4, 16]}, {"y": [4, 16]}, {"zero": np.array(0, np.float32)})
    samples = make_samples(model, 16)
    result = quantize_ops(model, samples, select=Selection(subgraphs=True))
    assert "QLinearMatMul" in str(as_proto(result).graph)
    assert quality(model, result, samples) > 30


def test_the_same_plan_gives_the_same_bytes():
    model = make_cnn()
    samples = make_samples(model)
    first, second = (
        as_proto(quantize_ops(model, samples)).SerializeToString(deterministic=True) for _ in "ab"
    )
    assert first == second


def test_a_plan_made_for_pairs_can_be_written_as_integers():
    model = OP_MODELS["ConvTranspose"]()
    samples = op_samples(model)
    plan = quantize_ops(model, samples, format="qdq").plan
    document = plan.to_json().replace('"format": "qdq"', '"format": "qoperator"')
    result = bitwright.apply_plan(bitwright.QuantPlan.from_json(document), model)
    assert any("no integer ConvTranspose" in note for note in result.plan.notes)
    assert ops(result)["QLinearConv"] == 2
    assert quality(model, result, samples) > 30
