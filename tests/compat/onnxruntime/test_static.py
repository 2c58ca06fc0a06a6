"""`quantize_static`: its options and what it writes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.models import (
    Reader,
    build,
    constants_of,
    element_types,
    make_cnn,
    make_mlp,
    make_samples,
    node,
    nodes_by_name,
    ops,
    quality,
    quantize_static_in,
    retype,
    weight,
)

from bitwright.compat.onnxruntime import QuantType, quantize_static
from bitwright.compat.onnxruntime.options import translate_options
from bitwright.errors import RecipeError

# Every key that the peer's quantize_static reads, with a value that is fit for it.
OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": False,
    "MinimumRealRange": 0.001,
    "EnableSubgraph": True,
    "ForceQuantizeNoInputCheck": True,
    "MatMulConstBOnly": True,
    "AddQDQPairToWeight": True,
    "DedicatedQDQPair": True,
    "QDQKeepRemovableActivations": True,
    "QDQDisableWeightAdjustForInt32Bias": True,
    "UseQDQContribOps": True,
    "QuantizeBias": False,
    "OpTypesToExcludeOutputQuantization": ["Conv"],
    "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
    "TensorQuantOverrides": {"x": [{"symmetric": True}]},
    "CalibTensorRangeSymmetric": True,
    "CalibMovingAverage": True,
    "CalibMovingAverageConstant": 0.5,
    "CalibMaxIntermediateOutputs": 4,
    "CalibStridedMinMax": 2,
    "SmoothQuant": False,
    "ActivationRestrictedAsymmetric": False,
    "BlockSize": 0,
}


@pytest.mark.parametrize("key", OPTIONS)
@pytest.mark.sampled(12)
def test_every_option_of_the_peer_is_known_and_runs(tmp_path, key):
    model = make_cnn()
    samples = make_samples(model)
    quantized = quantize_static_in(tmp_path, model, samples, extra_options={key: OPTIONS[key]})
    assert quality(model, quantized, samples) > 25


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ActivationSymmetric": "yes"}, "True or False, not 'yes'"),
        ({"MinimumRealRange": "wide"}, "is a number"),
        ({"MinimumRealRange": -1.0}, "at least 0"),
        ({"BlockSize": -1}, "at least 0"),
        ({"OpTypesToExcludeOutputQuantization": "Conv"}, "list of op types"),
        ({"QDQOpTypePerChannelSupportToAxis": {"Conv": "first"}}, "maps 'Conv' to an axis"),
        ({"TensorQuantOverrides": {"x": {"symmetric": True}}}, "list of dicts"),
        ({"TensorQuantOverrides": {"x": []}}, "list of dicts"),
        ({"TensorQuantOverrides": {"x": ["symmetric"]}}, "list of dicts"),
        ({"TensorQuantOverrides": {"x": [{"quant_type": "QInt9"}]}}, "QInt9"),
        ({"TensorQuantOverrides": {"x": [{"scale": "big", "zero_point": 0}]}}, "'x'.*scale"),
        ({"TensorQuantOverrides": {"w1": [{"rmin": 0, "rmax": 1}, {}]}}, "needs 'axis'"),
        ({"TensorQuantOverrides": {"x": [{"convert": {}}]}}, "convert needs a qtype"),
        ({"TensorQuantOverrides": 3}, "TensorQuantOverrides"),
        ({"CalibMaxIntermediateOutputs": 0}, "whole number of at least 1"),
        ({"CalibMaxIntermediateOutputs": "few"}, "whole number"),
    ],
    ids=str,
)
def test_an_option_with_a_wrong_value_is_refused_in_a_sentence(options, said):
    with pytest.raises(RecipeError, match=said) as error:
        translate_options(options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("Entropy", {"CalibMovingAverage": True}, "goes with CalibrationMethod.MinMax only"),
        ("MinMax", {"CalibPercentile": 99.0}, "goes with CalibrationMethod.Percentile only"),
        ("MinMax", {"scenario": "same"}, "option 'scenario' is unknown and ignored"),
    ],
)
def test_an_option_that_another_makes_void_is_a_warning(tmp_path, method, options, said):
    with pytest.warns(UserWarning, match=said):
        quantize_static_in(
            tmp_path,
            make_mlp(),
            make_samples(make_mlp()),
            calibrate_method=method,
            extra_options=options,
        )


def test_an_impossible_percentile_is_refused(tmp_path):
    with pytest.raises(ValueError, match="percentile"):
        quantize_static_in(
            tmp_path,
            make_mlp(),
            make_samples(make_mlp()),
            calibrate_method="Percentile",
            extra_options={"CalibPercentile": 101.0},
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes_to_exclude": ["conv9"]}, "no node is called 'conv9'"),
        ({"nodes_to_quantize": ["conv1", "conv9"]}, "no node is called 'conv9'"),
        ({"op_types_to_quantize": ["Conv", "Convv"]}, "unknown op type 'Convv'"),
        ({"optimize_model": True}, "optimize_model is ignored"),
    ],
)
def test_names_that_nothing_has_are_a_warning(tmp_path, arguments, said):
    model = make_cnn()
    with pytest.warns(UserWarning, match=said):
        made = quantize_static_in(tmp_path, model, make_samples(model), **arguments)
    assert "w1_quantized" in constants_of(made)


def test_a_model_with_nothing_to_quantize_is_written_as_it_is(tmp_path):
    model = make_cnn()
    names = [item.name for item in model.graph.node]
    with pytest.warns(UserWarning, match="written as it was"):
        made = quantize_static_in(tmp_path, model, make_samples(model), nodes_to_exclude=names)
    assert ops(made) == ops(model)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"activation_type": "QInt8", "weight_type": "QUInt8"},
            "doesn't support data format:activation_type=QuantType.QInt8, weight_type=QuantType.QU",
        ),
        (
            {"weight_type": "QFLOAT8E4M3FN", "calibrate_method": "Distribution"},
            "ONNXRuntime quantization doesn't support data format",
        ),
        (
            {"activation_type": "QUInt16", "quant_format": "QOperator"},
            "Only QuantFormat.QDQ supports 16-bit quantization types.",
        ),
    ],
)
def test_types_are_refused_in_the_words_of_the_peer(tmp_path, arguments, said):
    with pytest.raises(ValueError, match=said):
        quantize_static_in(tmp_path, make_mlp(), make_samples(make_mlp()), **arguments)


def test_data_is_missed_in_the_words_of_the_peer(tmp_path):
    with pytest.raises(ValueError, match=r"No data is collected\."):
        quantize_static_in(tmp_path, make_mlp(), [])
    with pytest.raises(ValueError, match="Either calibration_data_reader or an existing"):
        quantize_static(make_mlp(), tmp_path / "q.onnx", None)


def test_types_are_also_element_types(tmp_path):
    types = {"activation_type": TensorProto.UINT8, "weight_type": TensorProto.INT8}
    made = quantize_static_in(tmp_path, make_mlp(), make_samples(make_mlp()), **types)
    assert element_types(made)["x_zero_point"] == TensorProto.UINT8


def test_the_output_may_be_the_input(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(make_mlp(), path)
    quantize_static(path, path, make_samples(make_mlp()))
    assert "DequantizeLinear" in ops(onnx.load(path))


def test_the_callers_options_are_not_changed(tmp_path):
    options = {"ActivationSymmetric": True}
    quantize_static_in(tmp_path, make_mlp(), make_samples(make_mlp()), extra_options=options)
    assert options == {"ActivationSymmetric": True}


@pytest.mark.parametrize("value", [np.float32(0.05), 0.05, np.array(0.05, np.float32)])
def test_overrides_take_numpy_and_plain_numbers(tmp_path, value):
    overrides = {"x": [{"scale": value, "zero_point": np.array(7, np.int8)}]}
    quantized = quantize_static_in(
        tmp_path,
        make_mlp(),
        make_samples(make_mlp()),
        extra_options={"TensorQuantOverrides": overrides},
    )
    assert constants_of(quantized)["x_scale"] == np.float32(0.05)
    assert constants_of(quantized)["x_zero_point"] == 7


def test_overrides_mix_types_and_channels(tmp_path):
    model = make_cnn()
    overrides = {
        "x": [{"quant_type": QuantType.QUInt16}],
        "w1": [{"axis": 0, "rmin": -1.0, "rmax": 1.0 + i} for i in range(8)],
        "w3": [{"quant_type": "QInt16"}],
    }
    samples = make_samples(model)
    quantized = quantize_static_in(
        tmp_path, model, samples, extra_options={"TensorQuantOverrides": overrides}
    )
    types = element_types(quantized)
    assert types["x_zero_point"] == TensorProto.UINT16
    assert types["w3_quantized"] == TensorProto.INT16
    np.testing.assert_allclose(
        constants_of(quantized)["w1_scale"], (1 + np.arange(8)) / 127, rtol=1e-6
    )
    assert quality(model, quantized, samples) > 20


def test_names_are_the_peers(tmp_path):
    quantized = quantize_static_in(tmp_path, make_cnn(), make_samples(make_cnn()))
    assert {"x_QuantizeLinear", "x_DequantizeLinear", "w1_DequantizeLinear"} <= set(
        nodes_by_name(quantized)
    )
    assert {"x_scale", "x_zero_point", "w1_quantized", "b1_quantized_scale"} <= set(
        constants_of(quantized)
    )
    assert nodes_by_name(quantized)["y_QuantizeLinear"].input[0] == "y_QuantizeLinear_Input"


def test_external_data_is_written_on_request(tmp_path):
    model = make_cnn(channels=32)
    quantize_static(
        model, tmp_path / "q.onnx", Reader(make_samples(model)), use_external_data_format=True
    )
    assert (tmp_path / "q.onnx.data").exists()
    assert ops(onnx.load(tmp_path / "q.onnx"))["Conv"] == 2


def test_nothing_is_written_beside_the_model(tmp_path):
    onnx.save(make_mlp(), tmp_path / "m.onnx")
    quantize_static(tmp_path / "m.onnx", tmp_path / "q.onnx", make_samples(make_mlp()))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "q.onnx"]


def test_float_weights_that_the_runtime_rounds_are_a_warning(tmp_path):
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="first"),
        node("ConvTranspose", ["a", "w"], ["b"], name="middle"),
        node("Conv", ["b", "w"], ["y"], name="last"),
    ]
    model = build(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]}, {"w": weight(4, 4, 1, 1)})
    with pytest.warns(UserWarning, match="float weights of middle in 8 bits"):
        quantize_static_in(tmp_path, model, make_samples(model), op_types_to_quantize=["Conv"])


@pytest.mark.parametrize("tensor", ["x", "h", "y"])
def test_overrides_of_a_float16_model_reach_its_inputs_and_outputs(tmp_path, tensor):
    model = retype(make_mlp(), np.float16, TensorProto.FLOAT16)
    entry = {"quant_type": QuantType.QUInt16}
    made = quantize_static_in(
        tmp_path,
        model,
        make_samples(model),
        activation_type=QuantType.QUInt8,
        extra_options={"TensorQuantOverrides": {tensor: [entry]}},
    )
    types = element_types(made)
    wide = {name for name, kind in types.items() if kind == TensorProto.UINT16}
    assert wide and all(name.startswith(tensor) for name in wide)


@pytest.mark.parametrize(
    ("before", "arguments", "after"),
    [
        (9, {}, 11),
        (10, {}, 10),
        (11, {}, 11),
        (12, {"quant_format": "QOperator"}, 12),
        (11, {"quant_format": "QOperator", "per_channel": True}, 11),
        # There, DequantizeLinear gets an axis that it has from opset 13 on.
        (11, {"per_channel": True}, 13),
        (11, {"extra_options": {"TensorQuantOverrides": {"w1": [{"axis": 0}]}}}, 13),
        (13, {"activation_type": "QUInt16", "extra_options": {"UseQDQContribOps": True}}, 21),
        (13, {"weight_type": "QInt4"}, 13),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Q/DQ nodes are in the domain")
def test_the_opset_is_raised_only_for_what_needs_it(tmp_path, before, arguments, after):
    model = make_cnn(opset=before)
    samples = make_samples(model, 4)
    quantize_static(model, tmp_path / "q.onnx", Reader(samples), **arguments)
    written = onnx.load(tmp_path / "q.onnx")
    assert {item.domain: item.version for item in written.opset_import}[""] == after
    assert quality(model, written, samples) > (5 if "weight_type" in arguments else 20)


def test_a_pad_before_opset_11_has_pairs_and_its_value_counts(tmp_path):
    for value, shares in ((0.0, True), (2.5, False)):
        nodes = [
            node("Conv", ["x", "w"], ["c"]),
            node("Pad", ["c"], ["y"], pads=[0, 0, 1, 1, 0, 0, 1, 1], value=value),
        ]
        shapes = {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}
        model = build(nodes, *shapes, {"w": weight(4, 3, 3, 3, seed=1)}, opset=10)
        quantize_static(model, tmp_path / "q.onnx", Reader(make_samples(model, 4)))
        written = onnx.load(tmp_path / "q.onnx")
        assert ops(written)["QuantizeLinear"] == 3
        assert ("y_scale" not in constants_of(written)) is shares


def test_four_bits_below_opset_21_are_in_contrib_operators_with_a_warning(tmp_path):
    model = make_mlp(opset=13)
    with pytest.warns(UserWarning, match="domain com.microsoft"):
        quantize_static(
            model, tmp_path / "q.onnx", Reader(make_samples(model, 2)), weight_type=QuantType.QInt4
        )
    written = onnx.load(tmp_path / "q.onnx")
    assert {n.domain for n in written.graph.node if n.op_type == "DequantizeLinear"} == {
        "com.microsoft"
    }


@pytest.mark.parametrize("opset", [17, 21])
def test_a_float16_model_of_convolutions_is_computed_in_float32_on_every_machine(tmp_path, opset):
    plain = make_cnn(opset=opset, ir_version=10 if opset > 20 else 8)
    model = retype(plain, np.float16, TensorProto.FLOAT16)
    samples = make_samples(model, 4)
    quantize_static(model, tmp_path / "q.onnx", Reader(samples))
    written = onnx.load(tmp_path / "q.onnx")
    assert "Cast" in ops(written)
    scales = {name: a.dtype for name, a in constants_of(written).items() if "scale" in name}
    assert {*scales.values()} == {np.dtype(np.float32)}
    assert quality(model, written, samples) > 20


@pytest.mark.parametrize(
    ("arguments", "opset", "stays"),
    [
        ({}, 21, True),
        ({"per_channel": True}, 21, True),
        ({}, 17, False),
        ({"activation_type": "QUInt16"}, 21, False),
        (
            {"extra_options": {"TensorQuantOverrides": {"m": [{"quant_type": "QUInt16"}]}}},
            21,
            False,
        ),
        ({"quant_format": "QOperator"}, 21, False),
    ],
    ids=str,
)
def test_a_float16_model_of_products_stays_one_on_every_machine(tmp_path, arguments, opset, stays):
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    constants, version = {"w": weight(8, 8, seed=1)}, 10 if opset > 20 else 8
    plain = build(nodes, {"x": [1, 8]}, {"y": [1, 8]}, constants, opset=opset, ir_version=version)
    model = retype(plain, np.float16, TensorProto.FLOAT16)
    samples = make_samples(model, 4)
    quantize_static(model, tmp_path / "q.onnx", Reader(samples), **arguments)
    written = onnx.load(tmp_path / "q.onnx")
    assert ("Cast" not in ops(written)) is stays
    assert ("x_scale" in constants_of(written)) is stays
    assert quality(model, written, samples) > 20


def padded(value, **constants):
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Pad", ["c", "p", *value], ["d"]),
        node("Conv", ["d", "w2"], ["y"]),
    ]
    weights = {"w": weight(4, 3, 3, 3, seed=1), "w2": weight(4, 4, 3, 3, seed=2)}
    pads = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    inputs = {"x": [1, 3, 8, 8]} | {name: [] for name in value if name not in constants}
    return build(nodes, inputs, {"y": [1, 4, 6, 6]}, weights | pads | constants)


@pytest.mark.parametrize(
    ("model", "third"),
    [
        (padded([]), "c_zero_point"),
        (padded(["v"], v=np.float32(0.0)), "v_quantized"),
        (padded(["v"], v=np.float32(0.5)), "v_quantized"),
        (padded(["v"]), "v_quantized"),
    ],
    ids=["none", "zero", "constant", "run time"],
)
def test_a_pad_of_integers_fills_with_its_inputs_scale(tmp_path, model, third):
    samples = make_samples(model, 4)
    quantize_static(
        model,
        tmp_path / "q.onnx",
        Reader(samples),
        quant_format="QOperator",
        activation_type="QUInt8",
    )
    written = onnx.load(tmp_path / "q.onnx")
    pad = next(n for n in written.graph.node if n.op_type == "Pad")
    assert list(pad.input) == ["c_quantized", "p", third]
    reader = next(n for n in written.graph.node if "d_quantized" in n.input)
    assert list(reader.input[1:3]) == ["c_scale", "c_zero_point"]
    assert ops(written)["QuantizeLinear"] == (2 if model.graph.input[1:] else 1)
    assert quality(model, written, samples) > 20


def test_a_softmax_below_opset_13_keeps_its_default_axis(tmp_path):
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"])]
    shapes = {"x": [2, 3, 8]}, {"y": [2, 3, 4]}
    model = build(nodes, *shapes, {"w": weight(8, 4, seed=1)}, opset=11)
    samples = make_samples(model, 4)
    quantize_static(
        model,
        tmp_path / "q.onnx",
        Reader(samples),
        quant_format="QOperator",
        activation_type="QUInt8",
    )
    assert quality(model, onnx.load(tmp_path / "q.onnx"), samples) > 20


@pytest.mark.parametrize("force", [False, True])
def test_a_pad_of_a_float_stays_float_among_integer_operators(tmp_path, force):
    nodes = [node("Pad", ["x", "p"], ["d"]), node("Conv", ["d", "w"], ["y"])]
    constants = {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": weight(4, 3, 3, 3, seed=1)}
    model = build(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, constants)
    quantize_static(
        model,
        tmp_path / "q.onnx",
        Reader(make_samples(model, 2)),
        quant_format="QOperator",
        activation_type="QUInt8",
        extra_options={"ForceQuantizeNoInputCheck": force},
    )
    pad = next(n for n in onnx.load(tmp_path / "q.onnx").graph.node if n.op_type == "Pad")
    assert list(pad.input[:2]) == ["x", "p"]
