"""Whole models, and single tensors, in integers from given ranges."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnxruntime.quantization
import pytest
from onnx import TensorProto, numpy_helper
from support.models import (
    constants_of,
    make_cnn,
    make_samples,
    ops,
    quality,
)
from support.quark_quantizers import MODE, initializer, make_quantizer, observed

from bitwright.compat.quark.onnx_quantizer import (
    ONNXQuantizer,
    QuantizerError,
    VitisONNXQuantizer,
)
from bitwright.compat.vai_q_onnx import (
    CalibrationMethod,
    PowerOfTwoMethod,
    QuantType,
    VitisQuantType,
)
from bitwright.errors import RecipeError
from bitwright.numerics.quantize import dequantize


def test_the_arguments_are_the_documented_ones():
    named = "model per_channel reduce_range mode static weight_qType activation_qType tensors_range"
    named += " nodes_to_quantize nodes_to_exclude op_types_to_quantize"
    plain = [*named.split(), "extra_options"]
    vitis = [*named.split(), "calibrate_method", "quantized_tensor_type", "extra_options"]
    assert list(inspect.signature(ONNXQuantizer).parameters) == plain
    assert list(inspect.signature(VitisONNXQuantizer).parameters) == vitis


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
        (lambda q: q.quantize_initializer(q.model.initializer()[0], 7), "no quantized type"),
    ],
)
def test_what_cannot_be_done_is_a_value_error(call, said):
    quantizer = make_quantizer()
    quantizer.quantize_initializer(initializer(quantizer.model.model, "w2"), "QInt8")
    quantizer.quantize_initializer(initializer(quantizer.model.model, "w3"), "QFloat16")
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


def test_a_quantizer_has_what_it_inherits_there():
    model = make_cnn()
    quantizer = make_quantizer(model, per_channel=True, op_types=["Conv"])
    conv, relu = model.graph.node[:2]
    assert quantizer.is_per_channel() and quantizer.per_channel and not quantizer.reduce_range
    assert quantizer.should_quantize_node(conv) and not quantizer.should_quantize_node(relu)
    assert quantizer.is_input_a_initializer("w1") and not quantizer.is_input_a_initializer("x")
    assert quantizer.is_valid_quantize_weight("w1")
    assert quantizer.is_weight_symmetric(onnx.TensorProto.INT8)
    assert quantizer.weight_qType == onnx.TensorProto.INT8
    assert quantizer.activation_qType == onnx.TensorProto.UINT8
    assert quantizer.opset_version == 17 and "c1" in quantizer.value_infos
    assert quantizer.static and quantizer.parent is None and quantizer.initializers["w1"]
    assert not quantizer.has_QDQ_nodes() and quantizer.new_nodes == []
    assert (
        quantizer.find_initializer_in_path("w1")
        and quantizer.find_initializer_in_path("w9") is False
    )
    nodes = quantizer.quantize_activation(conv, [0])[3]
    quantizer.add_new_nodes(nodes)
    assert quantizer.new_nodes == nodes and quantizer.contains_tensor("x_quantized")
    with pytest.raises(AttributeError, match="no_such_thing"):
        quantizer.no_such_thing  # noqa: B018


def test_types_of_the_vendor_are_their_own():
    quantizer = make_quantizer(weight_type=VitisQuantType.QInt16, types={"x": "QInt16"})
    assert quantizer.weight_qType == onnx.TensorProto.INT16
    assert quantizer.quantized_tensor_type == {"x": "QInt16"}


# Weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8, TensorProto.INT8, "QInt16"])
def test_a_weight_with_one_scale(kind):
    model = make_cnn()
    quantizer = make_quantizer(model)
    names = quantizer.quantize_initializer(initializer(model, "w1"), kind, None)
    assert names == ("w1_quantized", "w1_zero_point", "w1_scale")
    q, zero_point, scale = (constants_of(quantizer.model.model)[name] for name in names)
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
    zero_point, scale, theirs = onnxruntime.quantization.quant_utils.quantize_data(
        original, TensorProto.INT8, symmetric=True
    )
    mine = constants_of(quantizer.model.model)
    np.testing.assert_array_equal(mine["w1_quantized"], theirs)
    assert mine["w1_scale"] == pytest.approx(float(scale)) and zero_point == 0


def test_power_of_two_weights_have_the_least_error():
    model = make_cnn()
    quantizer = make_quantizer(model, method=PowerOfTwoMethod.MinMSE)
    quantizer.quantize_initializer(initializer(model, "w1"), QuantType.QInt8, None)
    original = constants_of(model)["w1"].astype(np.float64)
    found = float(constants_of(quantizer.model.model)["w1_scale"])

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
    stored = constants_of(quantizer.model.model)
    assert names[0] not in stored and names[1] in stored and names[2] in stored


def test_float_weights_are_stored_as_they_are():
    model = make_cnn()
    quantizer = make_quantizer(model)
    quantizer.quantize_initializer(initializer(model, "w1"), TensorProto.BFLOAT16, None)
    quantizer.quantize_initializer(initializer(model, "w2"), TensorProto.FLOAT16, None)
    kinds = {t.name: t.data_type for t in quantizer.model.initializer()}
    assert kinds["w1_quantized"] == TensorProto.BFLOAT16
    assert kinds["w2_quantized"] == TensorProto.FLOAT16
    assert constants_of(quantizer.model.model)["w1_scale"] == 1


def test_a_scale_for_each_channel():
    model = make_cnn()
    quantizer = make_quantizer(model)
    names = quantizer.quantize_weight_per_channel("w1", QuantType.QInt8, 0, None, False)
    stored = constants_of(quantizer.model.model)
    assert names == ("w1_quantized", "w1_zero_point", "w1_scale")
    largest = np.abs(constants_of(model)["w1"]).reshape(8, -1).max(axis=1)
    np.testing.assert_allclose(stored["w1_scale"], largest / 127, rtol=1e-6)
    assert not stored["w1_zero_point"].any() and stored["w1_zero_point"].shape == (8,)
    reduced = make_quantizer(model)
    reduced.quantize_weight_per_channel("w1", QuantType.QInt8, -4, None)
    assert np.abs(constants_of(reduced.model.model)["w1_quantized"].astype(int)).max() == 64


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
    assert constants_of(quantizer.model.model)["w1_scale"].shape == (8,)
    assert quantizer.find_quantized_value("x").q_name == "x_quantized"
    # What is quantized already is only named.
    assert quantizer.quantize_weight(conv, [0])[3] == []
    whole = make_quantizer(model)
    whole.quantize_weight(conv, [1], op_level_per_channel=True, axis=0)
    assert constants_of(whole.model.model)["w1_scale"].shape == ()


# Biases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_bias_has_the_scale_of_its_product(per_channel):
    model = make_cnn()
    quantizer = make_quantizer(model, per_channel=per_channel)
    quantizer.quantize_weight(model.graph.node[0], [0, 1], op_level_per_channel=True, axis=0)
    assert quantizer.quantize_bias_static("b1", "x", "w1", beta=2.0) == "b1_quantized"
    stored = constants_of(quantizer.model.model)
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
    stored = constants_of(quantizer.model.model)
    assert stored["b1_quantized_scale"] == pytest.approx(2 / 255 * float(stored["w1_scale"]))


# Outer graphs -------------------------------------------------------------------------------


def test_what_an_outer_graph_has_is_found():
    outer, inner = make_quantizer(), make_quantizer()
    assert inner.find_quant_scale_zp("w1") == (None, None)
    assert inner.find_quantized_value("w1") is None
    outer.quantize_initializer(initializer(outer.model.model, "w1"), "QInt8")
    inner.parent = outer
    assert inner.find_quantized_value("w1") is outer.quantized_value_map["w1"]
    assert inner.find_quant_scale_zp("w1") == outer.used_scale_zp_map["w1"]


def test_an_initializer_is_written_once():
    quantizer = make_quantizer()
    for _ in range(2):
        quantizer.quantize_initializer(initializer(quantizer.model.model, "w1"), "QInt8")
    names = [t.name for t in quantizer.model.initializer()]
    assert len(names) == len(set(names))
    assert (
        numpy_helper.to_array(initializer(quantizer.model.model, "w1_quantized")).dtype == np.int8
    )
