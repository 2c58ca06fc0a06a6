"""`nncf.quantization.range_estimator`: statistics that give the ends of a tensor's range.

The range methods that these stand for are in `ranges.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

__all__ = [
    "AggregatorType",
    "RangeEstimatorParameters",
    "RangeEstimatorParametersSet",
    "StatisticsCollectorParameters",
    "StatisticsType",
]


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
