"""Options about number types, scales and biases: what each changes in the model."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from support.models import (
    build,
    constants_of,
    element_types,
    make_cnn,
    make_mlp,
    make_samples,
    normal,
    quality,
    weight,
)
from support.vai_q_onnx import (
    conv,
    on_npu,
    option,
    quantize_vai,
    scale,
    zero_point,
)

from bitwright.compat.vai_q_onnx import VitisQuantFormat, VitisQuantType
from bitwright.errors import RecipeError


@option("ActivationSymmetric")
def test_symmetric_activations():
    assert zero_point(quantize_vai(make_cnn()), "r2") == 0
    assert zero_point(quantize_vai(make_cnn(), {"ActivationSymmetric": True}), "r2") == 128


@option("WeightSymmetric")
def test_asymmetric_weights():
    assert zero_point(quantize_vai(make_mlp()), "w1") == 0
    assert zero_point(quantize_vai(make_mlp(), {"WeightSymmetric": False}), "w1") != 0


@option("UseUnsignedReLU")
def test_what_is_never_negative_uses_the_whole_unsigned_type():
    options = {"ActivationSymmetric": True}
    plain = quantize_vai(make_cnn(), options)
    made = quantize_vai(make_cnn(), {**options, "UseUnsignedReLU": True})
    assert zero_point(plain, "r2") == 128 and zero_point(made, "r2") == 0
    assert scale(made, "r2") < 0.6 * scale(plain, "r2")
    assert zero_point(made, "x") == 128


@option("MixedPrecisionTensor", "SpecificTensorPrecision")
def test_single_tensors_get_the_types_that_list_them():
    listed = {VitisQuantType.QInt16: ["r1"], "QInt8": ["r2"]}
    given = {"MixedPrecisionTensor": listed, "SpecificTensorPrecision": True}
    made = quantize_vai(make_cnn(), given)
    assert zero_point(made, "r1").dtype == np.int16 and zero_point(made, "r2").dtype == np.int8
    by_argument = quantize_vai(
        make_cnn(), {"MixedPrecisionTensor": listed}, specific_tensor_precision=True
    )
    assert zero_point(by_argument, "r1").dtype == np.int16
    with pytest.warns(UserWarning, match="no effect without specific_tensor_precision"):
        plain = quantize_vai(make_cnn(), {"MixedPrecisionTensor": listed})
    assert zero_point(plain, "r1").dtype == np.uint8
    with pytest.raises(RecipeError, match="maps number types to lists of tensors"):
        quantize_vai(make_cnn(), {"MixedPrecisionTensor": ["r1"]})


@option("UsePowerOf2Scale")
@pytest.mark.parametrize("method", ["NonOverflow", "MinMSE"])
def test_scales_may_be_finer_than_the_powers_of_two_that_a_method_has(method):
    powers = quantize_vai(make_cnn(), {"UsePowerOf2Scale": True}, calibrate_method=method)
    made = quantize_vai(make_cnn(), {"UsePowerOf2Scale": False}, calibrate_method=method)
    assert np.log2(scale(powers, "x")) % 1 == 0 and np.log2(scale(made, "x")) % 1 != 0
    model, samples = make_cnn(), make_samples(make_cnn())
    assert quality(model, made, samples) > quality(model, powers, samples)
    with pytest.raises(RecipeError, match="UsePowerOf2Scale must be True"):
        on_npu(make_cnn(), {"UsePowerOf2Scale": False})


@option("QuantizeBias")
def test_a_bias_stays_float():
    assert element_types(quantize_vai(make_cnn()))["b1_quantized"] == TensorProto.INT32
    made = quantize_vai(make_cnn(), {"QuantizeBias": False})
    assert element_types(made)["b1"] == TensorProto.FLOAT


@option("Int32Bias", "Int16Bias")
def test_the_type_of_a_bias_on_the_npu():
    model = make_cnn()
    assert element_types(on_npu(model))["b1_quantized"] == TensorProto.INT8
    for key, kind in (("Int32Bias", TensorProto.INT32), ("Int16Bias", TensorProto.INT16)):
        made = on_npu(model, {key: True})
        assert element_types(made)["b1_quantized"] == kind
        assert quality(model, made, make_samples(model)) > 20


@option("Int16Scale")
@pytest.mark.parametrize("method", ["MinMax", "MinMSE", "NonOverflow"])
def test_scales_are_a_16_bit_number_over_a_power_of_two(method):
    model = make_cnn()
    made = quantize_vai(model, {"Int16Scale": True}, calibrate_method=method)
    found = [v for name, v in constants_of(made).items() if name.endswith("_scale")]
    biases = {"b1_quantized_scale", "b2_quantized_scale", "b3_quantized_scale"}
    own = [
        v
        for name, v in constants_of(made).items()
        if name.endswith("_scale") and name not in biases
    ]
    assert found and any(np.frexp(value)[0] != 0.5 for value in own)
    for value in own:
        fractions = float(value) * 2.0 ** np.arange(0, 31)
        assert np.any((fractions % 1 == 0) & (np.abs(fractions) < 2**15)), value
    assert quality(model, made, make_samples(model)) > 25


@option("TensorQuantOverrides")
def test_single_tensors_get_what_overrides_say():
    entry = {"quant_type": VitisQuantType.QUInt16, "symmetric": True}
    made = quantize_vai(make_cnn(), {"TensorQuantOverrides": {"x": [entry]}})
    assert zero_point(made, "x") == 32768


@option("AdjustWeightScaleForInt32Bias")
def test_weight_scales_are_widened_for_a_huge_bias():
    constants = {"w": weight(4, 4, 1, 1, seed=1) * np.float32(1e-6), "b": normal(4, size=1e6)}
    shape = [1, 4, 6, 6]
    model = build([conv(["x", "w", "b"], "y", "conv")], {"x": shape}, {"y": shape}, constants)
    key = "AdjustWeightScaleForInt32Bias"
    assert scale(quantize_vai(model), "w") > 2 * scale(quantize_vai(model, {key: False}), "w")


@option("AdjustBiasScale")
def test_a_bias_has_the_scale_of_its_product():
    made = quantize_vai(make_cnn(), {"AdjustBiasScale": True})
    product = scale(made, "x") * scale(made, "w1")
    assert constants_of(made)["b1_quantized_scale"] == pytest.approx(product)
    with pytest.raises(RecipeError, match="must be True"):
        quantize_vai(make_cnn(), {"AdjustBiasScale": False})


@option("BFPAttributes", "MXAttributes")
@pytest.mark.parametrize(("kind", "key"), [("QBFP", "BFPAttributes"), ("QMX", "MXAttributes")])
def test_halves_of_shared_exponents_go_where_the_attributes_say(kind, key):
    def rounding_modes(options):
        types = dict.fromkeys(("activation_type", "weight_type"), VitisQuantType[kind])
        made = quantize_vai(make_cnn(), options, quant_format=VitisQuantFormat.QDQ, **types)
        return {
            attribute.i
            for each in made.graph.node
            for attribute in each.attribute
            if attribute.name == "rounding_mode"
        }

    assert rounding_modes({key: {"rounding_mode": 2}}) == {2}
    assert rounding_modes({key: {"rounding_mode": 0}}) == {0}
