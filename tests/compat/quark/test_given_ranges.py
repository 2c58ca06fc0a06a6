"""Parameters of activations, from given ranges."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import (
    build,
    make_cnn,
    node,
    weight,
)
from support.quark_quantizers import MODE, make_quantizer

from bitwright.compat.onnxruntime import TensorData, TensorsData
from bitwright.compat.quark.onnx_quantizer import (
    ONNXQuantizer,
)
from bitwright.compat.vai_q_onnx import CalibrationMethod, PowerOfTwoMethod, QuantType


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
    symmetric = {"ActivationSymmetric": True}
    method = PowerOfTwoMethod.NonOverflow
    known = make_quantizer(model, ranges={"y": (0.1, 0.7)}, method=method, options=symmetric)
    assert known.quantization_params["y"].scale == 2**-7


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
    ends = {"lowest": np.array([-1.0], np.float32), "highest": np.array([3.0], np.float32)}
    data = TensorsData(CalibrationMethod.MinMax, {"x": TensorData(**ends)})
    assert make_quantizer(ranges=data).quantization_params["x"].scale.ndim == 0
