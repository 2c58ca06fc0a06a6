"""Calibration methods, as range methods and scales."""

import pytest

from bitwright.compat.onnxruntime.enums import CalibrationMethod
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
        (CalibrationMethod.Entropy, {"NumBins": 512}, Entropy(bins=512), MinMax(), "float"),
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
def test_a_setting_of_another_method_is_refused_by_its_name(options, owner):
    (option,) = options
    with pytest.raises(RecipeError) as caught:
        choose_ranges(CalibrationMethod.Entropy, read_options(options))
    assert str(caught.value) == f"{option} goes with {owner} only."


def test_weights_with_power_of_two_scales_have_the_same_method():
    with pytest.raises(RecipeError, match="WeightCalibrateMethod is for float scales"):
        choose_ranges(LEAST, read_options({"WeightCalibrateMethod": "MinMSE"}))
