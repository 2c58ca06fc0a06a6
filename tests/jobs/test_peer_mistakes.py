"""Where ONNX Runtime's quantization tool gives wrong numbers or hangs, and what we do there.

The numbers W1 to W19 are those of the study of that tool. W4, W5 and W14 are faults of its
QOperator format and W8 of dynamic quantization, tested in tests/emit; here stand their counterparts
in static QDQ.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.models import (
    FLOAT32_MIN,
    build,
    constants_of,
    dequantizer_before,
    element_types,
    info,
    make_cnn,
    make_mlp,
    make_samples,
    make_transformer,
    node,
    nodes_by_name,
    normal,
    ops,
    parameters_of,
    quality,
    quantize_static_in,
    run,
    sqnr,
    tensors,
    weight,
)

import bitwright
from bitwright.compat.onnxruntime import CalibrationMethod, QuantType, quantize_static
from bitwright.errors import DataError, ModelError, RecipeError

pytestmark = pytest.mark.timeout(60)


# W1, W2: what a quantizer may absorb ---------------------------------------------------------


@pytest.mark.parametrize("activation", [QuantType.QInt8, QuantType.QUInt8])
def test_W1_a_symmetric_calibration_range_keeps_every_relu(tmp_path, activation):
    model = make_cnn()
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        activation_type=activation,
        extra_options={"CalibTensorRangeSymmetric": True},
    )
    assert ops(quantized)["Relu"] == 2
    assert quality(model, quantized, samples) > 30


def test_W1_a_plain_range_lets_the_quantizer_do_the_work_of_relu(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    quantized = quantize_static_in(tmp_path, model, samples)
    assert ops(quantized)["Relu"] == 0
    assert quality(model, quantized, samples) > 30


def make_clipped(low, high):
    nodes = [
        node("Conv", ["x", "w1"], ["c"], name="conv"),
        node("Clip", ["c", "low", "high"], ["k"], name="clip"),
        node("Conv", ["k", "w2"], ["y"], name="head"),
    ]
    constants = {
        "w1": weight(8, 3, 3, 3, seed=1) * 4,
        "w2": weight(4, 8, 1, 1, seed=2),
        "low": np.array(low, np.float32),
        "high": np.array(high, np.float32),
    }
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]}, constants)


@pytest.mark.parametrize("recipe", ["int8", "int8-per-channel", "int8-symmetric"])
@pytest.mark.parametrize(("low", "high"), [(0.5, 6), (-6, -0.5)])
def test_W2_a_clip_whose_bounds_leave_out_zero_is_kept(low, high, recipe):
    model = make_clipped(low, high)
    samples = make_samples(model)
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert ops(result)["Clip"] == 1
    assert quality(model, result, samples) > 30


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-2.0, 0.0), (0.0, 3e38)])
def test_W2_a_clip_that_the_quantizer_repeats_exactly_is_absorbed(low, high):
    model = make_clipped(low, high)
    samples = make_samples(model)
    recipe = {"base": "int8", "emulate": {"keep_activations": True}}
    kept = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    absorbed = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    assert ops(kept)["Clip"] == 1
    assert ops(absorbed)["Clip"] == 0
    gap = quality(model, absorbed, samples) - quality(model, kept, samples)
    assert gap > -0.1


# W3, W4, W8: Gemm ---------------------------------------------------------------------------


def make_gemm(**attributes):
    constants = {"w": weight(16, 8, seed=1), "c": normal(8, seed=2)}
    if attributes.get("transB"):
        constants["w"] = constants["w"].T.copy()
    return build(
        [node("Gemm", ["x", "w", "c"], ["y"], name="gemm", **attributes)],
        {"x": [4, 16]},
        {"y": [4, 8]},
        constants,
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {"beta": 2.0},
        {"beta": 0.5},
        {"beta": 0.0},
        {"alpha": 2.0},
        {"alpha": 0.5, "beta": 3.0, "transB": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_W3_W4_alpha_and_beta_of_a_gemm_are_honoured(tmp_path, attributes, per_channel):
    model = make_gemm(**attributes)
    samples = make_samples(model)
    native = bitwright.quantize(
        model,
        data=samples,
        recipe={"base": "int8", "per_channel": per_channel},
        holdout=False,
    )
    assert native.plan.nodes["gemm"].quantized
    assert quality(model, native, samples) > 30
    compatible = quantize_static_in(tmp_path, model, samples, per_channel=per_channel)
    assert quality(model, compatible, samples) > 30


@pytest.mark.parametrize("attributes", [{"beta": 2.0}, {"alpha": 0.5}], ids=str)
def test_W3_W4_a_scaled_gemm_of_computed_operands_is_right(attributes):
    model = build(
        [
            node("Gemm", ["x", "z", "c"], ["g"], name="gemm", **attributes),
            node("MatMul", ["g", "w"], ["y"], name="head"),
        ],
        {"x": [4, 16], "z": [16, 8], "c": [8]},
        {"y": [4, 8]},
        {"w": weight(8, 8)},
    )
    samples = make_samples(model)
    assert quality(model, bitwright.quantize(model, data=samples, holdout=False), samples) > 30


@pytest.mark.parametrize("inner", [16, 24])
def test_W8_two_transposed_gemms_share_one_weight(inner):
    constants = {"w": weight(16, inner, seed=1).T.copy().reshape(inner, 16)}
    nodes = [
        node("Gemm", ["x", "w"], ["a"], name="left", transB=1),
        node("Gemm", ["z", "w"], ["b"], name="right", transB=1),
    ]
    model = build(
        nodes, {"x": [4, 16], "z": [4, 16]}, {"a": [4, inner], "b": [4, inner]}, constants
    )
    samples = make_samples(model)
    result = bitwright.quantize(model, data=samples, holdout=False, purpose="size")
    assert quality(model, result, samples) > 30
    # A bias that a Gemm has not may be added, to correct it.
    stored = [name for name in constants_of(result) if name.endswith("_quantized")]
    assert [name for name in stored if "bias" not in name] == ["w_quantized"]


# W5, W6: biases -----------------------------------------------------------------------------


def make_shared_bias(*, reshape=False):
    """Two convolutions of very different sizes read one bias; a Reshape may read it, too."""
    nodes = [
        node("Conv", ["x", "w1", "b"], ["c1"], name="conv1"),
        node("Conv", ["c1", "w2", "b"], ["c2"], name="conv2"),
    ]
    constants = {
        "w1": weight(8, 3, 1, 1, seed=1) * 10,
        "w2": weight(8, 8, 1, 1, seed=2) * 0.1,
        "b": normal(8, seed=3),
    }
    last = "c2"
    if reshape:
        nodes += [
            node("Reshape", ["b", "shape"], ["b4"], name="bias_reshape"),
            node("Mul", ["c2", "b4"], ["m"], name="gate"),
            node("Conv", ["m", "w2"], ["c3"], name="conv3"),
        ]
        constants["shape"] = np.array([1, 8, 1, 1])
        last = "c3"
    return build(nodes, {"x": [1, 3, 6, 6]}, {last: [1, 8, 6, 6]}, constants)


@pytest.mark.parametrize("per_channel", [False, True])
def test_W5_a_bias_that_two_convolutions_read_gets_a_scale_for_each(tmp_path, per_channel):
    model = make_shared_bias()
    samples = make_samples(model)
    quantized = quantize_static_in(tmp_path, model, samples, per_channel=per_channel)
    assert quality(model, quantized, samples) > 30
    scales = [
        parameters_of(quantized, dequantizer_before(quantized, name, 2))[0]
        for name in ("conv1", "conv2")
    ]
    assert not np.allclose(scales[0], scales[1])


@pytest.mark.parametrize("optimize", [False, True])
def test_W6_a_bias_that_a_reshape_reads_too_ends_at_once_and_right(optimize):
    model = make_shared_bias(reshape=True)
    samples = make_samples(model)
    recipe = {"base": "int8", "optimize": optimize}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert quality(model, result, samples) > 30
    assert dequantizer_before(result, "conv1", 2) is not None


# W7: quantized already ----------------------------------------------------------------------


@pytest.mark.timeout(20)
def test_W7_a_quantized_weight_read_twice_is_refused_at_once():
    nodes = [
        node("DequantizeLinear", ["w8", "s", "z"], ["w"], name="dq"),
        node("MatMul", ["x", "w"], ["h"], name="up"),
        node("Transpose", ["w"], ["wt"], name="tie", perm=[1, 0]),
        node("MatMul", ["h", "wt"], ["y"], name="down"),
    ]
    constants = {
        "w8": np.arange(-64, 64, dtype=np.int8).reshape(16, 8),
        "s": np.array(0.01, np.float32),
        "z": np.array(0, np.int8),
    }
    model = build(nodes, {"x": [4, 16]}, {"y": [4, 16]}, constants)
    with pytest.raises(ModelError, match=r"already quantized .*DequantizeLinear 'dq'.*float model"):
        bitwright.quantize(model, data=make_samples(model))


# W9: attention masks ------------------------------------------------------------------------

MASKS = [-10000.0, FLOAT32_MIN, -np.inf]


def hide_last(value, length=6):
    mask = np.zeros((1, 1, 1, length), np.float32)
    mask[..., -2:] = value
    return mask


def attention_quality(model, quantized, samples):
    """SQNR of the softmax's result, which an output of its own shows."""
    return sqnr(run(model, samples, ["p"]), run(quantized, samples, ["p"]))


def show_softmax(model):
    model.graph.output.append(onnx.helper.make_tensor_value_info("p", 1, None))
    return model


@pytest.mark.parametrize("value", MASKS)
@pytest.mark.parametrize("recipe", ["int8", "int8-per-channel", "a16w8"])
def test_W9_a_constant_mask_leaves_the_scores_their_range(value, recipe):
    model = show_softmax(make_transformer(mask=hide_last(value)))
    samples = make_samples(model)
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert attention_quality(model, result, samples) > 25
    assert result.plan.nodes["masking"].action == "float"
    assert "mask" in result.plan.nodes["masking"].reason


@pytest.mark.parametrize("value", MASKS)
def test_W9_a_constant_mask_is_left_alone_through_the_peers_names_too(tmp_path, value):
    model = show_softmax(make_transformer(mask=hide_last(value)))
    samples = make_samples(model)
    quantized = quantize_static_in(tmp_path, model, samples)
    assert attention_quality(model, quantized, samples) > 25


def mask_samples(model, value):
    samples = make_samples(model)
    for index, sample in enumerate(samples):
        sample["mask"] = hide_last(value) if index % 2 else np.zeros((1, 1, 1, 6), np.float32)
    return samples


@pytest.mark.parametrize("value", [-10000.0, FLOAT32_MIN])
@pytest.mark.parametrize("isolated", [False, True])
def test_W9_a_mask_that_is_an_input_leaves_the_scores_their_range(value, isolated):
    model = show_softmax(make_transformer(mask="mask"))
    samples = mask_samples(model, value)
    recipe = {"base": "int8", "place": {"isolated": isolated}}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert attention_quality(model, result, samples) > 25


def make_computed_mask(value, how):
    """The mask as exporters write it, (1 - keep) * value or by Where, added to the scores."""
    model = make_transformer(mask="mask")
    constants = {"one": 1.0, "zero": 0.0, "huge": value}
    if how == "product":
        before = [
            node("Sub", ["one", "keep"], ["hide"], name="invert"),
            node("Mul", ["hide", "huge"], ["mask"], name="enlarge"),
        ]
    else:
        before = [
            node("Cast", ["keep"], ["kept"], name="cast", to=TensorProto.BOOL),
            node("Where", ["kept", "zero", "huge"], ["mask"], name="choose"),
        ]
    later = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*before, *later])
    del model.graph.input[1:]
    model.graph.input.append(info("keep", [1, 1, 1, 6]))
    model.graph.initializer.extend(
        tensors({name: np.array(number, np.float32) for name, number in constants.items()})
    )
    return show_softmax(model)


@pytest.mark.parametrize(
    ("value", "how"),
    [(-10000.0, "product"), (FLOAT32_MIN, "product"), (FLOAT32_MIN, "where"), (-np.inf, "where")],
)
@pytest.mark.parametrize("isolated", [False, True])
def test_W9_a_mask_computed_at_run_time_leaves_the_scores_their_range(value, how, isolated):
    model = make_computed_mask(value, how)
    samples = make_samples(model)
    for index, sample in enumerate(samples):
        sample["keep"] = np.ones((1, 1, 1, 6), np.float32)
        sample["keep"][..., 4:] = index % 2
    recipe = {"base": "int8", "place": {"isolated": isolated}}
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert attention_quality(model, result, samples) > 25


@pytest.mark.parametrize("recipe", ["bfp16", "mxint8", "mx9"])
@pytest.mark.parametrize("how", ["product", "where"])
@pytest.mark.sampled(1)
def test_W9_blocks_are_not_swallowed_by_a_mask_computed_at_run_time(recipe, how):
    model = make_computed_mask(FLOAT32_MIN, how)
    samples = make_samples(model)
    for sample in samples:
        sample["keep"] = np.array([[[[1, 1, 1, 1, 0, 0]]]], np.float32)
    result = bitwright.quantize(model, data=samples, recipe=recipe, holdout=False)
    assert attention_quality(model, result, samples) > 25


@pytest.mark.parametrize("value", MASKS)
def test_W9_a_mask_by_where_leaves_the_scores_their_range(value):
    nodes = [
        node("MatMul", ["x", "k"], ["s"], name="scores"),
        node("Where", ["keep", "s", "low"], ["m"], name="masking"),
        node("Softmax", ["m"], ["p"], name="softmax", axis=-1),
        node("MatMul", ["p", "v"], ["y"], name="context"),
    ]
    constants = {
        "k": weight(8, 6, seed=1) * 2,
        "v": weight(6, 8, seed=2),
        "keep": np.array([[True, True, True, True, False, False]]),
        "low": np.array(value, np.float32),
    }
    model = build(nodes, {"x": [6, 8]}, {"y": [6, 8], "p": [6, 6]}, constants)
    samples = make_samples(model)
    result = bitwright.quantize(model, data=samples, recipe="int8", holdout=False)
    assert attention_quality(model, result, samples) > 25


# W10, W12, W13, W19: calibration ------------------------------------------------------------


def test_W10_a_bound_on_stored_outputs_drops_no_data(tmp_path):
    model = make_cnn()
    samples = make_samples(model, 16)
    results = [
        quantize_static_in(tmp_path, model, samples, extra_options=options)
        for options in ({}, {"CalibMaxIntermediateOutputs": 5}, {"CalibMaxIntermediateOutputs": 4})
    ]
    assert results[0] == results[1] == results[2]


def long_tailed_samples(model, count=8):
    """Mostly small values, and a few a hundred times larger."""
    rng = np.random.default_rng(7)
    samples = make_samples(model, count)
    for sample in samples:
        hits = rng.random(sample["x"].shape) < 0.002
        sample["x"] = np.where(hits, sample["x"] * 100, sample["x"]).astype(np.float32)
    return samples


def activation_scale(quantized, name="x"):
    return float(constants_of(quantized)[f"{name}_scale"])


def test_W12_entropy_searches_and_clips_what_minmax_keeps():
    model = make_cnn(size=32)
    samples = long_tailed_samples(model)
    scales = {}
    for method, more in (("minmax", {}), ("entropy", {"guarded": False})):
        recipe = {"base": "int8", "ranges": {"method": method, **more}}
        result = bitwright.quantize(model, data=samples, recipe=recipe)
        scales[method] = activation_scale(result.to_proto())
    assert scales["entropy"] < 0.5 * scales["minmax"]


def test_W13_percentile_cuts_each_side_of_an_asymmetric_tensor_by_its_own_tail():
    model = make_mlp()
    rng = np.random.default_rng(0)
    samples = [{"x": rng.uniform(-1, 10, (64, 16)).astype(np.float32)} for _ in range(8)]
    recipe = {"base": "int8", "ranges": {"method": "percentile", "percentile": 90.0}}
    result = bitwright.quantize(model, data=samples, recipe=recipe)
    constants = constants_of(result.to_proto())
    scale, zero = float(constants["x_scale"]), int(constants["x_zero_point"])
    low, high = -zero * scale, (255 - zero) * scale
    # A tenth of the mass is gone, half of it on each side.
    assert low == pytest.approx(-1 + 0.05 * 11, abs=0.1)
    assert high == pytest.approx(10 - 0.05 * 11, abs=0.15)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "method",
    [CalibrationMethod.Entropy, CalibrationMethod.Percentile, CalibrationMethod.Distribution],
    ids=lambda method: method.name,
)
def test_W19_a_small_first_chunk_costs_neither_time_nor_the_result(tmp_path, method):
    model = make_mlp()
    samples = [{"x": normal(32, 16, seed=i)} for i in range(9)]
    samples[0]["x"] *= 1e-4
    options = {"CalibStridedMinMax": 1}
    quantized = quantize_static_in(
        tmp_path, model, samples, calibrate_method=method, extra_options=options
    )
    # In the order that makes the peer's bins grow, and in the other.
    turned = quantize_static_in(
        tmp_path, model, samples[::-1], calibrate_method=method, extra_options=options
    )
    assert quantized == turned
    assert quality(model, quantized, samples[1:]) > 15


# W11, W14: per channel ----------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("weight_type", [QuantType.QInt8, QuantType.QUInt8])
def test_W11_W14_per_channel_transposed_convolutions_keep_groups_and_type(
    tmp_path, group, weight_type
):
    constants = {"w": weight(4, 3, 3, 3, seed=1), "b": normal(3 * group, seed=2)}
    constants["w"] *= np.array([0.1, 1.0, 10.0], np.float32).reshape(1, 3, 1, 1)
    model = build(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], name="up", group=group, strides=[2, 2])],
        {"x": [1, 4, 5, 5]},
        {"y": [1, 3 * group, 11, 11]},
        constants,
    )
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=weight_type,
    )
    assert constants_of(quantized)["w_scale"].shape == (3,)
    assert element_types(quantized)["w_quantized"] == weight_type.tensor_type
    assert dequantizer_before(quantized, "up", 2) is not None
    assert quality(model, quantized, samples) > 32


def test_W14_uint8_weights_per_channel_are_stored_as_uint8(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
    )
    assert element_types(quantized)["w1_quantized"] == TensorProto.UINT8
    assert quality(model, quantized, samples) > 30


# W15, W16: options --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"x": [{"symmetric": True}], "r1": [{"scale": 0.1}]}, "r1.*both scale and zero_point"),
        (
            {"x": [{"symmetric": True}], "r9": [{"symmetric": True}]},
            "'r9'.*not present",
        ),
        ({"w1": [{"axis": 0, "rmin": -1.0, "rmax": 1.0}, {"rmin": -1.0}]}, "w1.*'rmax'.*every"),
        ({"w1": [{"axis": 0, "symmetric": True}, {"symmetric": False}]}, "w1.*agree.*symmetric"),
    ],
)
def test_W15_every_entry_of_the_overrides_is_checked_not_only_the_first(tmp_path, overrides, said):
    model = make_cnn()
    with pytest.raises(RecipeError, match=said):
        quantize_static(
            model,
            tmp_path / "q.onnx",
            make_samples(model),
            extra_options={"TensorQuantOverrides": overrides},
        )
    assert not list(tmp_path.iterdir())


def test_W16_the_product_of_two_activations_stays_float_if_asked_for():
    model = make_transformer()
    samples = make_samples(model)
    recipe = {"base": "int8", "place": {"isolated": True}}
    plain = bitwright.quantize(model, data=samples, recipe=recipe).to_proto()
    recipe["select"] = {"constant_weights_only": True}
    quantized = bitwright.quantize(model, data=samples, recipe=recipe).to_proto()
    last = nodes_by_name(quantized)["scores"].output[0]
    readers = [item.op_type for item in quantized.graph.node if last in item.input]
    assert dequantizer_before(quantized, "q_matmul", 1) is not None
    assert ops(quantized)["QuantizeLinear"] < ops(plain)["QuantizeLinear"]
    assert "QuantizeLinear" in readers  # the Mul behind it is quantized and needs its input so
    assert quality(model, quantized, samples) > 15


@pytest.mark.parametrize("axis", [0, 1, -3])
def test_W16_the_axis_given_for_an_op_type_is_honoured(tmp_path, axis):
    model = build(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], name="up")],
        {"x": [1, 4, 5, 5]},
        {"y": [1, 3, 7, 7]},
        {"w": weight(4, 3, 3, 3), "b": normal(3)},
    )
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        per_channel=True,
        extra_options={"QDQOpTypePerChannelSupportToAxis": {"ConvTranspose": axis}},
    )
    dequantizer = dequantizer_before(quantized, "up", 1)
    assert next(a.i for a in dequantizer.attribute if a.name == "axis") == axis % 4
    assert constants_of(quantized)["w_scale"].shape == (constants_of(model)["w"].shape[axis],)
    assert quality(model, quantized, samples) > 30


@pytest.mark.parametrize(("op_type", "axis"), [("Conv", 1), ("MatMul", 0), ("Gemm", 0)])
def test_W16_an_axis_that_the_runtime_would_misread_is_refused(tmp_path, op_type, axis):
    model = make_mlp() if op_type == "MatMul" else make_cnn()
    with pytest.raises(RecipeError, match=f"{op_type}.*wrong numbers.*axis {axis}"):
        quantize_static_in(
            tmp_path,
            model,
            make_samples(model),
            per_channel=True,
            extra_options={"QDQOpTypePerChannelSupportToAxis": {op_type: {"axis": axis}}},
        )


# W17: excluded means float ------------------------------------------------------------------


def make_tied():
    """Two MatMuls that share their input and their weight."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="left"),
        node("MatMul", ["x", "w"], ["b"], name="right"),
        node("MatMul", ["a", "v"], ["y"], name="head"),
    ]
    constants = {"w": weight(16, 16, seed=1), "v": weight(16, 16, seed=2)}
    return build(nodes, {"x": [4, 16]}, {"y": [4, 16], "b": [4, 16]}, constants)


@pytest.mark.parametrize("dedicated", [False, True])
def test_W17_an_excluded_node_reads_float_inputs_and_the_float_weight(tmp_path, dedicated):
    model = make_tied()
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path,
        model,
        samples,
        nodes_to_exclude=["right"],
        extra_options={"DedicatedQDQPair": dedicated},
    )
    assert list(nodes_by_name(quantized)["right"].input) == ["x", "w"]
    assert constants_of(quantized)["w"].dtype == np.float32
    assert element_types(quantized)["w_quantized"] == TensorProto.INT8
    expected, actual = (run(m, samples[0], ["b"])[0] for m in (model, quantized))
    np.testing.assert_array_equal(expected, actual)


def test_W17_an_excluded_node_writes_float_to_what_is_float():
    model = make_mlp()
    recipe = {"base": "int8", "select": {"exclude": ["first"]}}
    result = bitwright.quantize(model, data=make_samples(model), recipe=recipe)
    assert list(nodes_by_name(result)["first"].input) == ["x", "w1"]
    assert list(nodes_by_name(result)["bias"].input) == ["h", "b1"]
    assert result.plan.nodes["first"].reason == "it is excluded by name"


# W18: caches --------------------------------------------------------------------------------


def test_W18_a_cache_is_used_again_for_the_same_model(tmp_path):
    model = make_cnn()
    samples = make_samples(model)
    cache = tmp_path / "cache.safetensors"
    first = quantize_static_in(tmp_path, model, samples, calibration_cache_path=cache)
    again = tmp_path / "again.onnx"
    quantize_static(model, again, calibration_cache_path=cache)
    assert onnx.load(again) == first


@pytest.mark.parametrize("change", ["weights", "graph"])
def test_W18_a_cache_of_another_model_with_the_same_names_is_refused(tmp_path, change):
    model = make_cnn()
    cache = tmp_path / "cache.safetensors"
    bitwright.quantize(model, data=make_samples(model), recipe="int8", sketches=cache)
    if change == "weights":
        tensor = next(t for t in model.graph.initializer if t.name == "w1")
        tensor.raw_data = (constants_of(model)["w1"] * 3).tobytes()
    else:
        model.graph.node[0].attribute[0].ints[:] = [1, 1, 1, 2]
    with pytest.raises(DataError, match=r"cache\.safetensors.*another model"):
        bitwright.quantize(
            model,
            tmp_path / "q2.onnx",
            data=make_samples(model),
            recipe="int8",
            sketches=cache,
        )
    assert not (tmp_path / "q2.onnx").exists()


def test_W18_a_cache_of_the_peer_is_refused_in_one_sentence(tmp_path):
    model = make_cnn()
    cache = tmp_path / "cache.json"
    cache.write_text(json.dumps({"CLS": "TensorsData", "data": {}}))
    with pytest.raises(DataError, match=r"cache\.json"):
        quantize_static(
            model, tmp_path / "q.onnx", make_samples(model), calibration_cache_path=cache
        )
