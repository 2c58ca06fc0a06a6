"""Arguments that contradict each other or the hardware."""

from __future__ import annotations

import onnx
import pytest
from support.models import (
    Reader,
    unchanged,
)

import bitwright.compat.vai_q_onnx as vai_q_onnx
from bitwright.compat.onnxruntime.enums import CalibrationMethod
from bitwright.compat.vai_q_onnx import QuantType
from bitwright.compat.vai_q_onnx.enums import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.compat.vai_q_onnx.translate import choose_ranges
from bitwright.errors import RecipeError
from bitwright.recipe import MSE, Entropy, LayerwisePercentile, MinMax, MinMSE, NonOverflow

ON_NPU = {"activation_type": QuantType.QUInt8, "enable_npu_cnn": True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"per_channel": True}, "per_channel must be False"),
        ({"reduce_range": True}, "reduce_range must be False"),
        ({"weight_type": QuantType.QUInt8}, "weight_type must be QInt8"),
        ({"activation_type": QuantType.QInt16}, "activation_type must be QInt8 or QUInt8"),
        ({"extra_options": {"ActivationSymmetric": False}}, "ActivationSymmetric must be True"),
        ({"extra_options": {"WeightSymmetric": False}}, "WeightSymmetric must be True"),
        ({"extra_options": {"QuantizeBias": False}}, "QuantizeBias must be True"),
        ({"extra_options": {"Int16Scale": True}}, "Int16Scale must be False"),
        ({"calibrate_method": "MinMax"}, "calibrate_method must be a PowerOfTwoMethod"),
        ({"enable_npu_transformer": True}, "are two targets; choose one"),
    ],
)
def test_what_the_npu_cannot_do_is_refused(paths, tmp_path, arguments, said):
    with unchanged(tmp_path), pytest.raises(RecipeError, match=said):
        vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), **ON_NPU | arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"extra_options": {"MinMSEMode": "MostComon"}}, "Did you mean 'MostCommon'?"),
        ({"extra_options": {"FastFinetune": {"NumIteration": 1}}}, "Did you mean 'NumIterations'?"),
        ({"extra_options": {"Int16Bias": True, "Int32Bias": True}}, "contradict each other"),
        (
            {"extra_options": {"MinMSEMode": "All", "MinMSEModePof2Scale": "All"}},
            "are the same option; give one",
        ),
        ({"extra_options": {"AlignReshape": False}}, "'AlignReshape' must be True"),
        ({"extra_options": {"CLEBalanceMethod": "mean"}}, "must be 'max', not 'mean'"),
        ({"extra_options": {"RemoveQDQBetweenOps": ["Mul"]}}, "a list of pairs of op types"),
        ({"extra_options": {"NodesToExcludeOutputQuantization": "fc"}}, "a list of names"),
        ({"extra_options": {"SaveAndRestore": True}}, "is a path"),
        ({"subgraphs_to_exclude": [(["fc"], ["conv1"])]}, "no way leads from fc to conv1"),
        ({"subgraphs_to_exclude": ["conv1"]}, "a list of ([first nodes], [last nodes])"),
        ({"extra_options": {"CLESteps": "many"}}, "'CLESteps' is a whole number"),
        ({"include_rotation": True}, "include_rotation is not supported"),
        ({"enable_dpuu": True}, "Did you mean 'enable_dpu'?"),
        ({"quant_format": "QDG"}, "unknown quantization format 'QDG'"),
        ({"calibrate_method": "MinMSE2"}, "unknown calibration method 'MinMSE2'"),
        ({"weight_type": "QInt9"}, "unknown weight type 'QInt9'"),
        ({"activation_type": vai_q_onnx.VitisQuantType.QInt32}, "VitisQuantFormat.QDQ with it"),
    ],
)
def test_a_mistake_gets_one_sentence_and_leaves_no_file(paths, tmp_path, arguments, said):
    with unchanged(tmp_path), pytest.raises(RecipeError) as caught:
        vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), **arguments)
    assert said in str(caught.value)


def test_settings_without_their_switch_are_told(paths, monkeypatch):
    monkeypatch.setattr("bitwright.compat.vai_q_onnx.static._warned", set())
    with pytest.warns(UserWarning, match="no effect without include_cle"):
        vai_q_onnx.quantize_static(
            paths[0], None, Reader(paths[2]), extra_options={"CLESteps": 3, "AlignPool": False}
        )


def test_limits_of_power_of_two_scales_say_nothing_of_others(paths):
    options = {"NPULimitationCheck": True}
    with pytest.warns(UserWarning, match="it is about power-of-two scales"):
        vai_q_onnx.quantize_static(
            paths[0], None, Reader(paths[2]), calibrate_method="MinMax", extra_options=options
        )


FLOAT = CalibrationMethod.MinMax
LAYERWISE = LayerWiseMethod.LayerWisePercentile
LEAST = PowerOfTwoMethod.MinMSE


@pytest.mark.parametrize(
    ("method", "options", "ranges", "weights", "scales"),
    [
        (FLOAT, {}, MinMax(), MinMax(), "float"),
        (FLOAT, {"CalibMovingAverage": True}, MinMax(moving_average=0.01), MinMax(), "float"),
        (FLOAT, {"WeightCalibrateMethod": "MinMSE"}, MinMax(), MSE(), "float"),
        (FLOAT, {"Int16Scale": True}, MinMax(), MinMax(), "int16"),
        (
            CalibrationMethod.Entropy,
            {"NumBins": 512},
            Entropy(bins=512, guarded=False),
            MinMax(),
            "float",
        ),
        (FLOAT, {"NumBins": 512}, MinMax(), MinMax(), "float"),
        (LEAST, {}, MinMSE(symmetric=True), MinMSE(), "power-of-two"),
        (LEAST, {"Int16Scale": True}, MSE(symmetric=True), MinMax(), "int16"),
        (
            PowerOfTwoMethod.NonOverflow,
            {"CalibTensorRangeSymmetric": False},
            NonOverflow(),
            NonOverflow(),
            "power-of-two",
        ),
        (LAYERWISE, {"LWPMetric": "mse"}, LayerwisePercentile(metric="mse"), MinMax(), "float"),
        (LAYERWISE, {"Int16Scale": True}, MinMax(), MinMax(), "int16"),
        (ExtendedCalibrationMethod.MinMSE, {}, MSE(), MSE(), "float"),
        (ExtendedCalibrationMethod.MinMSE, {"Int16Scale": True}, MSE(), MSE(), "int16"),
        (Int16Method.MinMax, {}, MinMax(), MinMax(), "int16"),
    ],
)
def test_a_method_has_its_ranges_and_scales(method, options, ranges, weights, scales):
    found = choose_ranges(method, read_options(options))
    assert found == {"ranges": ranges, "weight_ranges": weights, "scales": scales}


@pytest.mark.parametrize(
    ("options", "owner"),
    [
        ({"CalibMovingAverage": True}, "CalibrationMethod.MinMax"),
        ({"Percentile": 99.0}, "CalibrationMethod.Percentile"),
        ({"LWPMetric": "mse"}, "LayerWiseMethod.LayerWisePercentile"),
        ({"PercentileCandidates": [99]}, "LayerWiseMethod.LayerWisePercentile"),
        ({"MinMSEMode": "All"}, "PowerOfTwoMethod.MinMSE"),
    ],
)
def test_a_setting_of_another_method_is_ignored_with_its_name(options, owner):
    (option,) = options
    parts = read_options(options)
    with pytest.warns(UserWarning, match=f"{option}.* goes with {owner} only"):
        choose_ranges(CalibrationMethod.Entropy, parts)
    assert not parts.calibration


def test_scales_of_batches_are_counted_for_symmetric_ranges_only():
    options = {"MinMSEModePof2Scale": "MostCommon", "CalibTensorRangeSymmetric": False}
    with pytest.warns(UserWarning, match="MinMSEModePof2Scale.* symmetric ranges"):
        found = choose_ranges(LEAST, read_options(options))
    assert found["ranges"].mode == "all"


def test_weights_with_power_of_two_scales_have_the_same_method():
    with pytest.raises(RecipeError, match="WeightCalibrateMethod is for float scales"):
        choose_ranges(LEAST, read_options({"WeightCalibrateMethod": "MinMSE"}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"extra_options": {"NodesToExcludeOutputQuantization": ["residuals"]}},
            "Did you mean 'res",
        ),
        ({"nodes_to_exclude": ["conv9"]}, "no node is called 'conv9'"),
        ({"input_nodes": ["conv9"]}, "no node or tensor is called 'conv9'"),
    ],
)
def test_a_name_that_no_node_has_is_a_warning(paths, arguments, said):
    with pytest.warns(UserWarning, match=said):
        vai_q_onnx.quantize_static(paths[0], paths[1], Reader(paths[2]), **arguments)
    assert onnx.load(paths[1]).graph.node
