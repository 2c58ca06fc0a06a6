"""Options become a recipe; what does nothing says so, and what has no form is refused."""

import warnings

import onnx
import pytest
from support.models import make_cnn

from bitwright.compat import nncf
from bitwright.compat.nncf.parameters import BackendParameters
from bitwright.compat.nncf.quantization.advanced_parameters import (
    AdvancedBiasCorrectionParameters,
    AdvancedQuantizationParameters,
    AdvancedSmoothQuantParameters,
    FP8QuantizationParameters,
    OverflowFix,
    QuantizationMode,
    QuantizationParameters,
    QuantizerPropagationRule,
)
from bitwright.compat.nncf.quantization.range_estimator import RangeEstimatorParametersSet
from bitwright.compat.nncf.quantization.translation import Options
from bitwright.recipe import MSE, MeanExtremes, MinMax, Percentile


def recipe(model=None, *, advanced=None, **options):
    given = AdvancedQuantizationParameters(**(advanced or {}))
    return Options(advanced=given, **options).recipe(model)


def test_presets_kinds_of_models_and_corrections():
    plain = recipe()
    assert plain.bias_correction == "fast" and plain.smooth is None
    # Unsigned where nothing is negative, and symmetric elsewhere.
    assert plain.emulate.restricted_asymmetric and not plain.activation_symmetric
    assert plain.per_channel and plain.ranges == MeanExtremes()
    transformer = recipe(model_type=nncf.ModelType.TRANSFORMER, fast_bias_correction=False)
    assert not transformer.emulate.restricted_asymmetric and transformer.smooth.alpha == 0.95
    assert transformer.bias_correction == "sequential"
    assert not recipe(preset=nncf.QuantizationPreset.MIXED).emulate.restricted_asymmetric
    performance = recipe(preset="performance", model_type="transformer")
    assert performance.emulate.restricted_asymmetric


def test_defaults_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recipe()


def test_parameters_of_activations_and_weights():
    found = recipe(
        advanced={
            "activations_quantization_params": QuantizationParameters(
                num_bits=8, mode=QuantizationMode.ASYMMETRIC, signedness_to_force=True
            ),
            "weights_quantization_params": QuantizationParameters(
                mode=QuantizationMode.ASYMMETRIC, per_channel=False
            ),
        }
    )
    assert not found.activation_symmetric and not found.emulate.unsigned_relu
    assert found.weight_symmetric is False and not found.per_channel
    symmetric = QuantizationParameters(mode=QuantizationMode.SYMMETRIC, narrow_range=True)
    kept = recipe(advanced={"weights_quantization_params": symmetric})
    assert kept.weight_symmetric is None and kept.per_channel


def test_ranges_of_activations_and_weights():
    found = recipe(
        advanced={
            "activations_range_estimator_params": RangeEstimatorParametersSet.HISTOGRAM,
            "weights_range_estimator_params": RangeEstimatorParametersSet.MEAN_QUANTILE,
        }
    )
    assert found.ranges == MSE() and found.weight_ranges == Percentile(percentile=99.98)
    assert recipe().weight_ranges == MinMax()


def test_overflow_is_kept_from_all_weights_or_from_those_of_the_first_layers():
    assert recipe(advanced={"overflow_fix": OverflowFix.ENABLE}).reduce_range
    assert recipe(advanced={"overflow_fix": OverflowFix.DISABLE}) == recipe()
    model = make_cnn()
    first = next(node for node in model.graph.node if node.op_type == "Conv")
    found = recipe(model, advanced={"overflow_fix": OverflowFix.FIRST_LAYER})
    assert list(found.overrides) == [first.input[1]] and not found.reduce_range
    assert found.overrides[first.input[1]].reduce_range


def test_corrections_and_smoothing():
    assert recipe(advanced={"disable_bias_correction": True}).bias_correction == "off"
    half = {"smooth_quant_alphas": AdvancedSmoothQuantParameters(matmul=0.5)}
    assert recipe(advanced=half, model_type="transformer").smooth.alpha == 0.5
    assert recipe(advanced=half).smooth is None
    assert recipe(advanced={"smooth_quant_alpha": -1}, model_type="transformer").smooth is None
    with pytest.warns(UserWarning, match="convolution of smooth_quant_alphas has no effect"):
        recipe(
            advanced={"smooth_quant_alphas": AdvancedSmoothQuantParameters(convolution=0.05)},
            model_type="transformer",
        )


def test_weights_stay_float_and_tensors_come_from_a_folder(tmp_path):
    given = {"backend_params": {BackendParameters.COMPRESS_WEIGHTS: False}}
    assert recipe(advanced=given).emulate.weight_pairs and not recipe().emulate.weight_pairs
    path = tmp_path / "model.onnx"
    onnx.save(make_cnn(), path, save_as_external_data=True, size_threshold=0)
    outside = onnx.load(path, load_external_data=False)
    folder = {"backend_params": {BackendParameters.EXTERNAL_DATA_DIR: str(tmp_path)}}
    whole = Options(advanced=AdvancedQuantizationParameters(**folder)).source(outside)
    assert whole.graph.initializer[0].raw_data and not outside.graph.initializer[0].raw_data


@pytest.mark.parametrize(
    ("advanced", "sentence"),
    [
        ({"inplace_statistics": False}, "inplace_statistics False has no effect"),
        ({"disable_channel_alignment": False}, "disable_channel_alignment False has no effect"),
        ({"quantize_outputs": True}, "quantize_outputs True has no effect"),
        (
            {"quantizer_propagation_rule": QuantizerPropagationRule.DO_NOT_MERGE_BRANCHES},
            "quantizer_propagation_rule",
        ),
        ({"batchwise_statistics": False}, "batchwise_statistics False has no effect"),
        (
            {"bias_correction_params": AdvancedBiasCorrectionParameters(threshold=2.0)},
            "bias_correction_params .* has no effect: a correction is kept where",
        ),
        (
            {"activations_quantization_params": QuantizationParameters(per_channel=True)},
            "per_channel of activations_quantization_params has no effect",
        ),
        (
            {"activations_quantization_params": QuantizationParameters(narrow_range=True)},
            "narrow_range of activations_quantization_params has no effect",
        ),
        (
            {"activations_quantization_params": QuantizationParameters(signedness_to_force=False)},
            "signedness_to_force False of activations",
        ),
        (
            {"weights_quantization_params": QuantizationParameters(signedness_to_force=False)},
            "signedness_to_force False of weights",
        ),
        (
            {
                "weights_quantization_params": QuantizationParameters(
                    mode=QuantizationMode.ASYMMETRIC, per_channel=False, narrow_range=True
                )
            },
            "narrow_range of weights_quantization_params has no effect",
        ),
        (
            {
                "weights_quantization_params": QuantizationParameters(
                    mode=QuantizationMode.ASYMMETRIC
                )
            },
            "mode ASYMMETRIC of weights_quantization_params leaves weights symmetric",
        ),
    ],
)
def test_what_does_nothing_is_warned_of(advanced, sentence):
    with pytest.warns(UserWarning, match=sentence):
        recipe(advanced=advanced)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": nncf.QuantizationMode.FP8_E4M3}, "mode 'fp8_e4m3' has no form here; for eight"),
        (
            {"advanced": {"weights_quantization_params": FP8QuantizationParameters()}},
            "weights_quantization_params with eight-bit floats has no form here",
        ),
        (
            {
                "advanced": {
                    "activations_quantization_params": QuantizationParameters(num_bits=16),
                }
            },
            "num_bits of activations_quantization_params is 8 for ONNX models, not 16",
        ),
    ],
)
def test_other_numbers_than_eight_bit_integers_are_refused(options, sentence):
    with pytest.raises(nncf.ParameterNotSupportedError, match=sentence):
        recipe(**options)


def test_contradictions_are_refused():
    asymmetric = QuantizationParameters(mode=QuantizationMode.ASYMMETRIC)
    with pytest.raises(nncf.ValidationError, match="overflow_fix ENABLE is for symmetric weights"):
        recipe(
            advanced={
                "overflow_fix": OverflowFix.ENABLE,
                "weights_quantization_params": asymmetric,
            }
        )
    with pytest.raises(nncf.ValidationError, match="subset_size is at least 1, not 0"):
        recipe(subset_size=0)
