"""`nncf.quantization.range_estimator`: statistics that give the ends of a tensor's range.

Beside its names there are the range methods that these stand for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from bitwright.compat.nncf.errors import ParameterNotSupportedError
from bitwright.recipe import MSE, MeanExtremes, MinMax, Percentile, RangeMethod
from bitwright.support.wording import warn_user


class StatisticsType(Enum):
    """The statistic of the values of one sample."""

    MAX = "max"
    MIN = "min"
    ABS_MAX = "abs_max"
    QUANTILE = "quantile"
    ABS_QUANTILE = "abs_quantile"
    MEAN = "mean"
    RAW = "raw"


class AggregatorType(Enum):
    """How the statistics of all samples are combined."""

    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    MEDIAN = "median"
    MEAN_NO_OUTLIERS = "mean_no_outliers"
    MEDIAN_NO_OUTLIERS = "median_no_outliers"
    HISTOGRAM = "histogram"


@dataclass
class StatisticsCollectorParameters:
    """How one end of a range is found; None is the usual way."""

    statistics_type: StatisticsType | None = None
    aggregator_type: AggregatorType | None = None
    clipping_value: float | None = None
    quantile_outlier_prob: float = 1e-4


@dataclass
class RangeEstimatorParameters:
    """How both ends of a range are found."""

    min: StatisticsCollectorParameters = field(default_factory=StatisticsCollectorParameters)
    max: StatisticsCollectorParameters = field(default_factory=StatisticsCollectorParameters)


def _both(
    low: StatisticsType, high: StatisticsType, *aggregators: AggregatorType
) -> RangeEstimatorParameters:
    return RangeEstimatorParameters(
        StatisticsCollectorParameters(low, aggregators[0]),
        StatisticsCollectorParameters(high, aggregators[-1]),
    )


class RangeEstimatorParametersSet:
    """The usual ways to find both ends."""

    MINMAX = _both(StatisticsType.MIN, StatisticsType.MAX, AggregatorType.MIN, AggregatorType.MAX)
    MEAN_MINMAX = _both(StatisticsType.MIN, StatisticsType.MAX, AggregatorType.MEAN)
    MEDIAN_MINMAX = _both(StatisticsType.MIN, StatisticsType.MAX, AggregatorType.MEDIAN)
    MEAN_NO_OUTLIERS_MINMAX = _both(
        StatisticsType.MIN, StatisticsType.MAX, AggregatorType.MEAN_NO_OUTLIERS
    )
    MEAN_QUANTILE = _both(StatisticsType.QUANTILE, StatisticsType.QUANTILE, AggregatorType.MEAN)
    HISTOGRAM = _both(StatisticsType.RAW, StatisticsType.RAW, AggregatorType.HISTOGRAM)


# The range methods that they stand for ---------------------------------------------------------


UNREAD_THERE = "it has none for ONNX models there, either"

_EXTREMES = (StatisticsType.MIN, StatisticsType.MAX, StatisticsType.ABS_MAX)


@dataclass(frozen=True, slots=True)
class Role:
    """Activations or weights: the name of the option, and the range estimator by default."""

    option: str
    usual: RangeEstimatorParameters
    symmetric: bool
    is_constant: bool = False
    """Weights are one sample: all aggregators give the same."""
    per_channel: bool = False


def range_method(given: RangeEstimatorParameters, role: Role) -> RangeMethod:
    """Return the range method that an estimator stands for."""
    ends = {"min": given.min, "max": given.max}
    for name, end in ends.items():
        if end.clipping_value is not None:
            warn_user(f"clipping_value of {name} of {role.option} has no effect: {UNREAD_THERE}.")
    if AggregatorType.HISTOGRAM in (given.min.aggregator_type, given.max.aggregator_type):
        return _by_histogram(given, role)
    low = _method(_filled(given.min, role.usual.min), f"min of {role.option}", role)
    high = _method(_filled(given.max, role.usual.max), f"max of {role.option}", role)
    # Around zero, what is found for the maximum ends both sides, there as here.
    if low != high and not role.symmetric:
        warn_user(
            f"min of {role.option} is found as the maximum is: a range method finds both ends."
        )
    _warn_of_nearest(given.max, role)
    return high


def _by_histogram(given: RangeEstimatorParameters, role: Role) -> RangeMethod:
    if given != RangeEstimatorParametersSet.HISTOGRAM:
        raise ParameterNotSupportedError(
            f"{role.option} has a histogram for one end; give both, as "
            "RangeEstimatorParametersSet.HISTOGRAM has them."
        )
    return MinMax() if role.per_channel else MSE()


def _filled(
    given: StatisticsCollectorParameters, usual: StatisticsCollectorParameters
) -> StatisticsCollectorParameters:
    return replace(
        given,
        statistics_type=given.statistics_type or usual.statistics_type,
        aggregator_type=given.aggregator_type or usual.aggregator_type,
    )


def _method(end: StatisticsCollectorParameters, what: str, role: Role) -> RangeMethod:
    outside = end.quantile_outlier_prob
    if end.statistics_type in (StatisticsType.QUANTILE, StatisticsType.ABS_QUANTILE):
        if not 0 <= outside < 0.5:
            raise ParameterNotSupportedError(
                f"quantile_outlier_prob of {what} lies in [0, 0.5), not at {outside}."
            )
        sides = 2 if end.statistics_type is StatisticsType.QUANTILE else 1
        return Percentile(percentile=round(100 * (1 - sides * outside), 10))
    if end.statistics_type not in _EXTREMES:
        raise ParameterNotSupportedError(
            f"{what} is {end.statistics_type}, which is not an end of a range; take MIN, MAX, "
            "ABS_MAX, QUANTILE or ABS_QUANTILE."
        )
    whole = end.aggregator_type in (AggregatorType.MIN, AggregatorType.MAX)
    return MinMax() if whole or role.is_constant else MeanExtremes()


def _warn_of_nearest(end: StatisticsCollectorParameters, role: Role) -> None:
    known = (None, AggregatorType.MIN, AggregatorType.MAX, AggregatorType.MEAN)
    is_extreme = end.statistics_type is None or end.statistics_type in _EXTREMES
    if end.aggregator_type not in known and is_extreme and not role.is_constant:
        warn_user(
            f"{end.aggregator_type} of {role.option} is taken as the mean of extremes: one pass "
            "keeps sums of extremes, not all of them; QUANTILE and HISTOGRAM clip outliers."
        )
