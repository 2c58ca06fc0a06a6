"""One is not many, in every sentence that counts samples."""

import pytest

import bitwright
from bitwright.compat.options import ignore_unknown

DEMO = bitwright.load_demo()


def quantize(samples):
    return bitwright.quantize(DEMO.model_path, data=DEMO.calibration[:samples])


def test_one_calibration_sample_is_counted_as_one():
    told = quantize(1).summary()
    assert "Calibrated on: 1 sample of " in told
    assert "Against float (1 calibration sample): " in told


def test_one_held_back_sample_is_counted_as_one():
    result = quantize(9)
    assert "Against float (1 holdout sample): " in result.summary()
    assert "Against float on 1 holdout sample<" in result._repr_html_()


def test_a_comparison_counts_one_sample_as_one():
    found = bitwright.compare(DEMO.model_path, quantize(8).model, data=DEMO.calibration[:1])
    assert found.summary().startswith("On 1 sample, ")


def test_a_warning_points_out_of_the_package():
    with pytest.warns(UserWarning, match="Did you mean 'percentile'") as caught:
        assert ignore_unknown({"percentil": 1}, ["percentile"]) == {}
    assert caught[0].filename == __file__
