"""Range estimators become range methods; what has no method of its own is said."""

import pytest

from bitwright.compat.nncf.errors import ParameterNotSupportedError
from bitwright.compat.nncf.quantization.range_estimator import (
    AggregatorType,
    RangeEstimatorParameters,
    Role,
    StatisticsCollectorParameters,
    StatisticsType,
    range_method,
)
from bitwright.compat.nncf.quantization.range_estimator import (
    RangeEstimatorParametersSet as Presets,
)
from bitwright.recipe import MSE, MeanExtremes, MinMax, Percentile

SYMMETRIC = Role("activations", Presets.MEAN_MINMAX, symmetric=True)
ASYMMETRIC = Role("activations", Presets.MEAN_MINMAX, symmetric=False)
WEIGHTS = Role("weights", Presets.MINMAX, symmetric=True, is_constant=True)


def quantile(outside, kind=StatisticsType.QUANTILE):
    return StatisticsCollectorParameters(kind, quantile_outlier_prob=outside)


@pytest.mark.parametrize(
    ("given", "method"),
    [
        (RangeEstimatorParameters(), MeanExtremes()),
        (Presets.MINMAX, MinMax()),
        (Presets.MEAN_MINMAX, MeanExtremes()),
        (Presets.MEAN_QUANTILE, Percentile(percentile=99.98)),
        (Presets.HISTOGRAM, MSE()),
        (RangeEstimatorParameters(quantile(0.01), quantile(0.01)), Percentile(percentile=98.0)),
    ],
)
def test_estimators_are_range_methods(given, method):
    assert range_method(given, ASYMMETRIC) == method


def test_weights_are_one_sample_so_that_aggregators_do_not_matter():
    assert range_method(RangeEstimatorParameters(), WEIGHTS) == MinMax()
    assert range_method(Presets.MEDIAN_MINMAX, WEIGHTS) == MinMax()


def test_channels_have_no_histogram():
    of_channels = Role("weights", Presets.MINMAX, True, is_constant=True, per_channel=True)
    assert range_method(Presets.HISTOGRAM, of_channels) == MinMax()


def test_around_zero_the_maximum_decides():
    given = RangeEstimatorParameters(max=quantile(0.001, StatisticsType.ABS_QUANTILE))
    assert range_method(given, SYMMETRIC) == Percentile(percentile=99.9)
    with pytest.warns(UserWarning, match="min of activations is found as the maximum is"):
        assert range_method(given, ASYMMETRIC) == Percentile(percentile=99.9)


@pytest.mark.parametrize("given", [Presets.MEDIAN_MINMAX, Presets.MEAN_NO_OUTLIERS_MINMAX])
def test_the_nearest_method_is_warned_of(given):
    with pytest.warns(UserWarning, match="of activations is taken as the mean of extremes"):
        assert range_method(given, SYMMETRIC) == MeanExtremes()


def test_nothing_reads_clipping_values():
    end = StatisticsCollectorParameters(clipping_value=3.0)
    with pytest.warns(UserWarning, match="clipping_value of max of activations has no effect"):
        range_method(RangeEstimatorParameters(max=end), ASYMMETRIC)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (StatisticsCollectorParameters(StatisticsType.MEAN), "is not an end of a range; take MIN"),
        (quantile(0.5), r"lies in \[0, 0.5\), not at 0.5"),
        (
            StatisticsCollectorParameters(StatisticsType.RAW, AggregatorType.HISTOGRAM),
            "a histogram for one end; give both",
        ),
    ],
)
def test_what_is_no_end_of_a_range_is_refused(end, sentence):
    with pytest.raises(ParameterNotSupportedError, match=sentence):
        range_method(RangeEstimatorParameters(max=end), ASYMMETRIC)
