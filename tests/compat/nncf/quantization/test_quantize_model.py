"""`quantize`: the first items of the dataset calibrate, and a proto comes back."""

import importlib

import onnx
import pytest
from support.models import ops

import bitwright
from bitwright.compat import nncf
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedQuantizationParameters,
    OverflowFix,
    QuantizationMode,
    QuantizationParameters,
)

DEMO = bitwright.load_demo()
DATASET = nncf.Dataset(DEMO.calibration[:8], lambda image: {"image": image[None]})


def quantized(**options):
    model = nncf.quantize(onnx.load(DEMO.model_path), DATASET, **options)
    onnx.checker.check_model(model)
    return model


def initializers(model):
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


def test_the_model_is_quantized_by_channel_and_ignored_nodes_are_not():
    whole = quantized(subset_size=4)
    part = quantized(ignored_scope=nncf.IgnoredScope(types=["Conv"]))
    assert ops(whole)["QuantizeLinear"] > ops(part)["QuantizeLinear"] > 0
    with pytest.raises(nncf.ValidationError, match=r"ignored_scope: .*no_such"):
        quantized(ignored_scope=nncf.IgnoredScope(names=["no_such"]))


def test_the_first_layers_alone_have_seven_bits():
    given = AdvancedQuantizationParameters(overflow_fix=OverflowFix.FIRST_LAYER)
    weights = [
        array
        for array in initializers(quantized(advanced_parameters=given)).values()
        if array.dtype == "int8" and array.ndim == 4
    ]
    narrow = [array for array in weights if abs(array.astype(int)).max() <= 64]
    assert 0 < len(narrow) < len(weights)


def test_weights_may_be_asymmetric_and_by_tensor():
    given = AdvancedQuantizationParameters(
        weights_quantization_params=QuantizationParameters(
            mode=QuantizationMode.ASYMMETRIC, per_channel=False
        )
    )
    points = [
        array
        for name, array in initializers(quantized(advanced_parameters=given)).items()
        if array.dtype == "int8" and name.endswith("weight_zero_point")
    ]
    assert points and all(array.ndim == 0 for array in points)
    assert any(array != 0 for array in points)


def test_weights_may_stay_float_behind_pairs():
    given = AdvancedQuantizationParameters(backend_params={"compress_weights": False})
    arrays = initializers(quantized(advanced_parameters=given)).values()
    floats = [array for array in arrays if array.ndim == 4]
    assert floats and all(array.dtype == "float32" for array in floats)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("common.quantization.structs", ("QuantizationPreset", "QuantizationScheme")),
        ("data", ("Dataset",)),
        ("data.dataset", ("Dataset",)),
        ("errors", ("ValidationError",)),
        ("onnx.quantization.backend_parameters", ("BackendParameters",)),
        ("parameters", ("DropType", "ModelType", "QuantizationMode", "TargetDevice")),
        ("quantization", ("QuantizationPreset", "quantize", "quantize_with_accuracy_control")),
        ("quantization.advanced_parameters", ("AdvancedAccuracyRestorerParameters",)),
        ("quantization.quantize_model", ("quantize", "quantize_with_accuracy_control")),
        ("quantization.range_estimator", ("RangeEstimatorParametersSet",)),
        ("scopes", ("IgnoredScope", "Subgraph")),
    ],
)
def test_modules_have_the_paths_that_they_have_there(module, names):
    found = importlib.import_module(f"bitwright.compat.nncf.{module}")
    assert all(hasattr(found, name) for name in names)
