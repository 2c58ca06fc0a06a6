"""Whole models in integer operators, from given ranges."""

from __future__ import annotations

import inspect

import onnx
import pytest
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
from bitwright.compat.vai_q_onnx import CalibrationMethod, PowerOfTwoMethod, VitisQuantType
from bitwright.errors import RecipeError


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
    with pytest.raises(AttributeError, match="no_such_thing"):
        quantizer.no_such_thing  # noqa: B018


def test_types_of_the_vendor_are_their_own():
    quantizer = make_quantizer(weight_type=VitisQuantType.QInt16, types={"x": "QInt16"})
    assert quantizer.weight_qType == onnx.TensorProto.INT16
    assert quantizer.quantized_tensor_type == {"x": "QInt16"}
