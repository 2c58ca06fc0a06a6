"""Options about calibration and its data: what each changes in the model."""

from __future__ import annotations

import numpy as np
import pytest
from support.models import (
    build,
    make_cnn,
    make_mlp,
    node,
    normal,
    weight,
)
from support.vai_q_onnx import (
    option,
    quantize_vai,
    recipe_of,
    scale,
    zero_point,
)

from bitwright.compat import vai_q_onnx
from bitwright.compat.vai_q_onnx import QuantType
from bitwright.compat.vai_q_onnx.options import read_options
from bitwright.errors import RecipeError


@option("CalibTensorRangeSymmetric")
def test_symmetric_ranges():
    made = quantize_vai(make_cnn(), {"CalibTensorRangeSymmetric": True})
    assert zero_point(made, "r2") in (127, 128)
    # Powers of two are symmetric unless told otherwise.
    plain = quantize_vai(make_cnn(), calibrate_method="NonOverflow")
    made = quantize_vai(
        make_cnn(), {"CalibTensorRangeSymmetric": False}, calibrate_method="NonOverflow"
    )
    assert zero_point(plain, "r2") == 128 and zero_point(made, "r2") == 0


def growing_samples():
    return [{"x": np.full((1, 16), size, np.float32)} for size in (1.0, 1.0, 1.0, 10.0)]


@option("CalibMovingAverage", "CalibMovingAverageConstant")
def test_extremes_are_averaged_with_the_constant():
    samples = growing_samples()
    whole = quantize_vai(make_mlp(), samples=samples)
    assert scale(whole, "x") == pytest.approx(10 / 255)
    options = {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.5}
    made = quantize_vai(make_mlp(), options, samples=samples)
    assert scale(made, "x") == pytest.approx(5.5 / 255)
    made = quantize_vai(make_mlp(), {"CalibMovingAverage": True}, samples=samples)
    assert scale(made, "x") == pytest.approx(1.09 / 255)


@option("MinMSEMode", "MinMSEModePof2Scale")
@pytest.mark.filterwarnings("ignore:option 'MinMSEMode':DeprecationWarning")
@pytest.mark.parametrize("key", ["MinMSEMode", "MinMSEModePof2Scale"])
def test_the_scale_that_is_best_for_most_batches(key):
    rng = np.random.default_rng(0)
    sizes = (1, 1, 1, 30)
    samples = [{"x": (rng.standard_normal((64, 16)) * s).astype(np.float32)} for s in sizes]
    every = quantize_vai(make_mlp(), {key: "All"}, samples=samples, calibrate_method="MinMSE")
    most = quantize_vai(make_mlp(), {key: "MostCommon"}, samples=samples, calibrate_method="MinMSE")
    assert scale(every, "x") >= 8 * scale(most, "x")


@option("WeightCalibrateMethod")
def test_weights_are_searched_for_the_least_error():
    constants = {"w": np.append(normal(255, size=0.1), np.float32(1)).reshape(16, 16)}
    model = build(
        [node("MatMul", ["x", "w"], ["y"], name="m")], {"x": [4, 16]}, {"y": [4, 16]}, constants
    )
    plain = quantize_vai(model)
    assert scale(plain, "w") == pytest.approx(1 / 127)
    assert scale(quantize_vai(model, {"WeightCalibrateMethod": "MinMSE"}), "w") <= scale(plain, "w")


@option("Percentile")
def test_the_percentile():
    made = [
        quantize_vai(make_cnn(), {"Percentile": share}, calibrate_method="Percentile")
        for share in (90.0, 99.999)
    ]
    assert scale(made[0], "x") < 0.7 * scale(made[1], "x")


@option("LWPMetric", "PercentileCandidates")
def test_the_best_of_a_few_percentiles():
    method = vai_q_onnx.LayerWiseMethod.LayerWisePercentile
    made = [
        quantize_vai(
            make_cnn(),
            {"PercentileCandidates": [share], "LWPMetric": "mse"},
            calibrate_method=method,
        )
        for share in (90.0, 99.999)
    ]
    assert scale(made[0], "x") < 0.7 * scale(made[1], "x")
    assert recipe_of(made[0])["ranges"]["metric"] == "mse"
    with pytest.raises(RecipeError, match="'mae' or 'mse'"):
        read_options({"LWPMetric": "max"})
    with pytest.warns(UserWarning, match="LayerWisePercentile only"):
        quantize_vai(make_cnn(), {"LWPMetric": "mae"})


@option("NumBins", "NumQuantizedBins")
def test_bins_of_the_entropy_search():
    made = quantize_vai(
        make_cnn(), {"NumBins": 512, "NumQuantizedBins": 64}, calibrate_method="Entropy"
    )
    assert recipe_of(made)["ranges"]["bins"] == 512
    assert recipe_of(made)["ranges"]["levels"] == 64


@option("CalibDataSize")
def test_only_so_many_samples_are_used():
    made = quantize_vai(make_mlp(), {"CalibDataSize": 3}, samples=growing_samples())
    assert scale(made, "x") == pytest.approx(1 / 255)


@option("CalibOptimizeMem", "CalibWorkerNum")
def test_bounds_of_memory_and_threads_change_nothing():
    made = quantize_vai(make_cnn(), {"CalibOptimizeMem": False, "CalibWorkerNum": 4})
    assert made.graph == quantize_vai(make_cnn()).graph
    with pytest.raises(RecipeError, match="True or False"):
        quantize_vai(make_cnn(), {"CalibOptimizeMem": "yes"})


@option("SaveAndRestore", "TensorsRangeFile")
@pytest.mark.parametrize("key", ["SaveAndRestore", "TensorsRangeFile"])
@pytest.mark.filterwarnings("ignore:option 'TensorsRangeFile':DeprecationWarning")
def test_what_was_observed_is_kept_in_a_file(key, tmp_path):
    kept = tmp_path / "ranges"
    model = make_cnn()
    first = quantize_vai(model, {key: str(kept)})
    assert kept.exists()
    again = vai_q_onnx.quantize_static(
        model,
        calibrate_method="MinMax",
        activation_type=QuantType.QUInt8,
        extra_options={key: kept},
    )
    assert again.graph == first.graph


@option("UseRandomData", "RandomDataReaderInputDataRange", "RandomDataReaderInputShape")
def test_random_data_has_the_range_and_the_shape_that_was_asked_for():
    options = {
        "UseRandomData": True,
        "RandomDataReaderInputDataRange": {"x": [-4.0, 4.0]},
        "RandomDataReaderInputShape": {"x": [32, 16]},
    }
    with pytest.warns(UserWarning, match="random numbers"):
        made = vai_q_onnx.quantize_static(
            make_mlp(), calibrate_method="MinMax", extra_options=options
        )
    assert scale(made, "x") == pytest.approx(8 / 255, rel=0.02)
    with pytest.raises(RecipeError, match="of 'x' is a pair of numbers"):
        read_options({"RandomDataReaderInputDataRange": {"x": 4}})


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"RandomDataReaderInputDataRange": {"xs": [-4.0, 4.0]}}, "Did you mean 'x'"),
        ({"RandomDataReaderInputShape": {"y": [1, 16]}}, "no input of the model"),
        ({"RandomDataReaderInputShape": [1, 16]}, "a dict of input names"),
    ],
)
def test_settings_of_random_data_name_every_input_and_nothing_else(option, said):
    with pytest.raises(ValueError, match=said):
        vai_q_onnx.quantize_static(make_mlp(), extra_options={"UseRandomData": True, **option})


def test_no_input_is_left_out_of_the_settings_of_random_data():
    nodes = [
        node("Add", ["x", "z"], ["s"], name="sum"),
        node("MatMul", ["s", "w"], ["y"], name="m"),
    ]
    model = build(nodes, {"x": [1, 8], "z": [1, 8]}, {"y": [1, 8]}, {"w": weight(8, 8)})
    option = {"RandomDataReaderInputDataRange": {"x": [0, 1]}}
    with pytest.raises(ValueError, match="nothing about the input 'z'"):
        vai_q_onnx.quantize_static(model, extra_options={"UseRandomData": True, **option})
