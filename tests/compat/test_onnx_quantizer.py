"""The quantizer classes, method by method: names, values and errors."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from onnx import TensorProto, numpy_helper
from support.models import (
    build,
    constants_of,
    make_cnn,
    make_samples,
    node,
    ops,
    quality,
    run,
    weight,
)

from bitwright.compat.onnxruntime import TensorData, TensorsData
from bitwright.compat.onnxruntime.enums import QuantizedValueType
from bitwright.compat.quark.onnx_quantizer import (
    ONNXQuantizer,
    QuantizationMode,
    QuantizerError,
    VitisONNXQuantizer,
)
from bitwright.compat.vai_q_onnx import CalibrationMethod, PowerOfTwoMethod, QuantType
from bitwright.errors import RecipeError
from bitwright.numerics import dequantize

MODE = QuantizationMode.QLinearOps


def observed(model):
    """Return (lowest, highest) of every tensor of a model, over its samples."""
    names = [name for n in model.graph.node for name in n.output]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    exposed.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
        for n in names
        if n not in known
    )
    samples = make_samples(model)
    outputs = [value.name for value in exposed.graph.output]
    results = [dict(zip(outputs, run(exposed, s), strict=True)) | s for s in samples]
    return {
        name: (min(r[name].min() for r in results), max(r[name].max() for r in results))
        for name in results[0]
    }


def make_quantizer(
    model=None,
    *,
    method=CalibrationMethod.MinMax,
    ranges=None,
    per_channel=False,
    weight_type=QuantType.QInt8,
    activation_type=QuantType.QUInt8,
    types=None,
    op_types=(),
    options=None,
):
    model = make_cnn() if model is None else model
    return VitisONNXQuantizer(
        model,
        per_channel,
        False,
        MODE,
        True,
        weight_type,
        activation_type,
        observed(model) if ranges is None else ranges,
        [],
        [],
        list(op_types),
        method,
        types or {},
        options,
    )


def initializer(model, name):
    return next(t for t in model.graph.initializer if t.name == name)


def test_the_arguments_are_the_documented_ones():
    named = "model per_channel reduce_range mode static weight_qType activation_qType tensors_range"
    named += " nodes_to_quantize nodes_to_exclude op_types_to_quantize"
    plain = [*named.split(), "extra_options"]
    vitis = [*named.split(), "calibrate_method", "quantized_tensor_type", "extra_options"]
    assert list(inspect.signature(ONNXQuantizer).parameters) == plain
    assert list(inspect.signature(VitisONNXQuantizer).parameters) == vitis


# Parameters of activations ------------------------------------------------------------------


def test_parameters_come_from_the_ranges():
    quantizer = make_quantizer(ranges={"x": (-1.0, 3.0)})
    params = quantizer.calculate_quantization_params()["x"]
    assert params.scale == pytest.approx(4 / 255) and params["zero_point"] == 64
    assert params.zero_point.dtype == np.uint8


def test_without_ranges_there_are_no_parameters():
    model = make_cnn()
    quantizer = ONNXQuantizer(model, False, False, MODE, True, "QInt8", "QUInt8", None, [], [], [])
    assert quantizer.calculate_quantization_params() is None


def test_a_relu_gives_its_range_to_what_it_reads_alone():
    ranges = {"c1": (-9.0, 2.0), "r1": (0.0, 2.0)}
    params = make_quantizer(ranges=ranges).quantization_params
    assert params["c1"].scale == params["r1"].scale == pytest.approx(2 / 255)
    # Not where its type is not among those to quantize.
    params = make_quantizer(ranges=ranges, op_types=["Conv"]).quantization_params
    assert params["c1"].scale == pytest.approx(11 / 255)


def test_a_softmax_gives_zero_to_one():
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="mm"),
        node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    model = build(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"w": weight(8, 8)})
    params = make_quantizer(model, ranges={"y": (0.1, 0.7)}).quantization_params
    assert params["y"].scale == pytest.approx(1 / 255)


@pytest.mark.parametrize("largest", [0.7, 1.0, 1.3, 1.41])
def test_power_of_two_scales_do_not_overflow(largest):
    options = {"ActivationSymmetric": True}
    quantizer = make_quantizer(
        method=PowerOfTwoMethod.NonOverflow, ranges={"x": (-largest, largest)}, options=options
    )
    params = quantizer.quantization_params["x"]
    assert np.frexp(params.scale)[0] == 0.5 and params.zero_point == 128
    assert 127 * params.scale >= largest > 127 * params.scale / 2


def test_what_is_never_negative_may_be_asymmetric():
    ranges = {"r1": (0.0, 2.0), "x": (-1.0, 1.0)}
    options = {"ActivationSymmetric": True, "UseUnsignedReLU": True}
    params = make_quantizer(ranges=ranges, options=options).quantization_params
    assert params["r1"].zero_point == 0 and params["x"].zero_point == 128


def test_single_tensors_have_types_and_parameters_of_their_own():
    options = {
        "TensorQuantOverrides": {
            "r1": [{"scale": 0.25, "zero_point": 3}],
            "c2": [{"rmin": -4.0, "rmax": 4.0}],
        }
    }
    ranges = dict.fromkeys(("x", "r1", "c2"), (-1.0, 1.0))
    quantizer = make_quantizer(ranges=ranges, types={"x": QuantType.QInt16}, options=options)
    params = quantizer.quantization_params
    assert params["x"].zero_point.dtype == np.int16
    assert (params["r1"].scale, params["r1"].zero_point) == (0.25, 3)
    assert params["c2"].scale == pytest.approx(8 / 255)


def test_a_calibrator_s_result_is_a_set_of_ranges():
    ends = {"lowest": np.float32(-1), "highest": np.float32(3)}
    data = TensorsData(CalibrationMethod.MinMax, {"x": TensorData(**ends)})
    assert make_quantizer(ranges=data).quantization_params["x"].zero_point == 64


# Weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8, TensorProto.INT8, "QInt16"])
def test_a_weight_with_one_scale(kind):
    model = make_cnn()
    quantizer = make_quantizer(model)
    names = quantizer.quantize_initializer(initializer(model, "w1"), kind, None)
    assert names == ("w1_quantized", "w1_zero_point", "w1_scale")
    q, zero_point, scale = (constants_of(quantizer.model)[name] for name in names)
    original = constants_of(model)["w1"]
    back = dequantize(q, scale, zero_point)
    assert np.abs(back - original).max() <= 0.5001 * scale
    # Asked again, it is the same one.
    assert quantizer.quantize_initializer(initializer(model, "w1"), kind, None) == names
    assert quantizer.find_quantized_value("w1").q_name == "w1_quantized"
    assert quantizer.find_quant_scale_zp("w1")[0] == pytest.approx(scale)


def test_the_integers_are_those_of_onnx_runtime():
    model = make_cnn()
    quantizer = make_quantizer(model)
    quantizer.quantize_initializer(initializer(model, "w1"), QuantType.QInt8, "MinMax")
    original = constants_of(model)["w1"]
    zero_point, scale, theirs = peer.quant_utils.quantize_data(
        original, TensorProto.INT8, symmetric=True
    )
    mine = constants_of(quantizer.model)
    np.testing.assert_array_equal(mine["w1_quantized"], theirs)
    assert mine["w1_scale"] == pytest.approx(float(scale)) and zero_point == 0


def test_power_of_two_weights_have_the_least_error():
    model = make_cnn()
    quantizer = make_quantizer(model, method=PowerOfTwoMethod.MinMSE)
    quantizer.quantize_initializer(initializer(model, "w1"), QuantType.QInt8, None)
    original = constants_of(model)["w1"].astype(np.float64)
    found = float(constants_of(quantizer.model)["w1_scale"])

    def error(scale):
        return float(
            ((np.clip(np.rint(original / scale), -127, 127) * scale - original) ** 2).sum()
        )

    best = min((2.0**-p for p in range(2, 16)), key=error)
    assert found == best


def test_only_the_parameters_of_a_weight():
    model = make_cnn()
    quantizer = make_quantizer(model)
    tensor = initializer(model, "w1")
    names = quantizer.quantize_initializer(tensor, QuantType.QInt8, None, keep_float_weight=True)
    stored = constants_of(quantizer.model)
    assert names[0] not in stored and names[1] in stored and names[2] in stored


def test_float_weights_are_stored_as_they_are():
    model = make_cnn()
    quantizer = make_quantizer(model)
    quantizer.quantize_initializer(initializer(model, "w1"), TensorProto.BFLOAT16, None)
    quantizer.quantize_initializer(initializer(model, "w2"), TensorProto.FLOAT16, None)
    kinds = {t.name: t.data_type for t in quantizer.model.graph.initializer}
    assert kinds["w1_quantized"] == TensorProto.BFLOAT16
    assert kinds["w2_quantized"] == TensorProto.FLOAT16
    assert constants_of(quantizer.model)["w1_scale"] == 1


def test_a_scale_for_each_channel():
    model = make_cnn()
    quantizer = make_quantizer(model)
    names = quantizer.quantize_weight_per_channel("w1", QuantType.QInt8, 0, None, False)
    stored = constants_of(quantizer.model)
    assert names == ("w1_quantized", "w1_zero_point", "w1_scale")
    largest = np.abs(constants_of(model)["w1"]).reshape(8, -1).max(axis=1)
    np.testing.assert_allclose(stored["w1_scale"], largest / 127, rtol=1e-6)
    assert not stored["w1_zero_point"].any() and stored["w1_zero_point"].shape == (8,)
    reduced = make_quantizer(model)
    reduced.quantize_weight_per_channel("w1", QuantType.QInt8, -4, None)
    assert np.abs(constants_of(reduced.model)["w1_quantized"].astype(int)).max() == 64


def test_weights_of_a_node():
    model = make_cnn()
    quantizer = make_quantizer(model, per_channel=True)
    conv = model.graph.node[0]
    names, zero_points, scales, nodes = quantizer.quantize_weight(
        conv, [0, 1], op_level_per_channel=True, axis=0
    )
    assert names == ["x_quantized", "w1_quantized"]
    assert zero_points == ["x_zero_point", "w1_zero_point"]
    assert scales == ["x_scale", "w1_scale"]
    assert [(n.op_type, list(n.input), list(n.output)) for n in nodes] == [
        ("QuantizeLinear", ["x", "x_scale", "x_zero_point"], ["x_quantized"])
    ]
    assert constants_of(quantizer.model)["w1_scale"].shape == (8,)
    assert quantizer.find_quantized_value("x").value_type is QuantizedValueType.Input
    # What is quantized already is only named.
    assert quantizer.quantize_weight(conv, [0])[3] == []
    whole = make_quantizer(model)
    whole.quantize_weight(conv, [1], op_level_per_channel=True, axis=0)
    assert constants_of(whole.model)["w1_scale"].shape == ()


# Biases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_bias_has_the_scale_of_its_product(per_channel):
    model = make_cnn()
    quantizer = make_quantizer(model, per_channel=per_channel)
    quantizer.quantize_weight(model.graph.node[0], [0, 1], op_level_per_channel=True, axis=0)
    assert quantizer.quantize_bias_static("b1", "x", "w1", beta=2.0) == "b1_quantized"
    stored = constants_of(quantizer.model)
    expected = 2.0 * stored["x_scale"] * stored["w1_scale"]
    np.testing.assert_allclose(stored["b1_quantized_scale"], expected, rtol=1e-6)
    assert not np.any(stored["b1_quantized_zero_point"])
    assert stored["b1_quantized"].dtype == np.int32
    back = stored["b1_quantized"] * stored["b1_quantized_scale"]
    np.testing.assert_allclose(back, constants_of(model)["b1"], atol=float(np.max(expected)))
    assert quantizer.find_quantized_value("b1").axis == (0 if per_channel else None)


def test_a_bias_takes_the_scale_from_the_ranges_where_its_input_is_still_float():
    model = make_cnn()
    quantizer = make_quantizer(model, ranges={"x": (-1.0, 1.0)})
    quantizer.quantize_initializer(initializer(model, "w1"), "QInt8")
    quantizer.quantize_bias_static("b1", "x", "w1")
    stored = constants_of(quantizer.model)
    assert stored["b1_quantized_scale"] == pytest.approx(2 / 255 * float(stored["w1_scale"]))


# Outer graphs -------------------------------------------------------------------------------


def test_what_an_outer_graph_has_is_found():
    outer, inner = make_quantizer(), make_quantizer()
    assert inner.find_quant_scale_zp("w1") == (None, None)
    assert inner.find_quantized_value("w1") is None
    outer.quantize_initializer(initializer(outer.model, "w1"), "QInt8")
    inner.parent = outer
    assert inner.find_quantized_value("w1") is outer.quantized_value_map["w1"]
    assert inner.find_quant_scale_zp("w1") == outer.used_scale_zp_map["w1"]


# The whole model ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [CalibrationMethod.MinMax, PowerOfTwoMethod.MinMSE])
def test_the_whole_model_in_integer_operators(method):
    model = make_cnn()
    quantizer = make_quantizer(model, method=method)
    made = quantizer.quantize_model()
    onnx.checker.check_model(made, full_check=True)
    assert ops(made)["QLinearConv"] == 2 and ops(made)["QGemm"] == 1
    assert quality(model, made, make_samples(model)) > 25
    stored = constants_of(made)
    assert stored["x_scale"] == quantizer.quantization_params["x"].scale


def test_the_class_for_float_scales():
    model = make_cnn()
    quantizer = ONNXQuantizer(
        model, False, False, MODE, True, "QInt8", "QUInt8", observed(model), [], ["fc"], []
    )
    made = quantizer.quantize_model()
    assert ops(made)["Gemm"] == 1 and ops(made)["QLinearConv"] == 2


def test_the_given_model_is_left_as_it_was():
    model = make_cnn()
    before = model.SerializeToString()
    quantizer = make_quantizer(model)
    quantizer.quantize_initializer(initializer(model, "w1"), "QInt8")
    quantizer.quantize_model()
    assert model.SerializeToString() == before


# Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda q: q.quantize_weight_per_channel("x", "QInt8", 0, None), "not an initializer"),
        (lambda q: q.quantize_weight_per_channel("w1", "QInt8", 9, None), "has no axis 9"),
        (lambda q: q.quantize_bias_static("b1", "x", "w1"), "is not quantized yet"),
        (lambda q: q.quantize_bias_static("b1", "nowhere", "w2"), "no range of input 'nowhere'"),
        (lambda q: q.quantize_bias_static("y", "x", "w2"), "is not an initializer"),
        (lambda q: q.quantize_bias_static("b3", "x", "w3"), "needs a weight in integers"),
        (lambda q: q.quantize_initializer(q.model.graph.initializer[0], 7), "no quantized type"),
    ],
)
def test_what_cannot_be_done_is_a_value_error(call, said):
    quantizer = make_quantizer()
    quantizer.quantize_initializer(initializer(quantizer.model, "w2"), "QInt8")
    quantizer.quantize_initializer(initializer(quantizer.model, "w3"), "QFloat16")
    with pytest.raises(ValueError, match=said) as caught:
        call(quantizer)
    assert isinstance(caught.value, RecipeError)


def test_ranges_that_are_missing_or_malformed():
    with pytest.raises(QuantizerError, match="no range of 'x'"):
        make_quantizer(ranges={"y": (0.0, 1.0)}).quantize_model()
    with pytest.raises(QuantizerError, match="lowest, highest"):
        make_quantizer(ranges={"x": 3.0})


def test_other_modes_are_pointed_to_their_functions():
    arguments = (False, False, MODE, False, "QInt8", "QUInt8", {}, [], [], [])
    with pytest.raises(QuantizerError, match="quantize_dynamic"):
        ONNXQuantizer(make_cnn(), *arguments)
    arguments = (False, False, "IntegerOps", True, "QInt8", "QUInt8", {}, [], [], [])
    with pytest.raises(QuantizerError, match="quantize_dynamic"):
        ONNXQuantizer(make_cnn(), *arguments)


def test_an_initializer_is_written_once():
    quantizer = make_quantizer()
    for _ in range(2):
        quantizer.quantize_initializer(initializer(quantizer.model, "w1"), "QInt8")
    names = [t.name for t in quantizer.model.graph.initializer]
    assert len(names) == len(set(names))
    assert numpy_helper.to_array(initializer(quantizer.model, "w1_quantized")).dtype == np.int8
