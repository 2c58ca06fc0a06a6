"""Range methods: one function per method, from what was observed to the range that is quantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bitwright.decide.ranges.density import Density, Levels
from bitwright.decide.ranges.mse import least_error_range, row_ranges, starting_fractions
from bitwright.decide.ranges.power_of_two import (
    exact_min_mse,
    least_error_position,
    most_common_position,
    position_grid,
)
from bitwright.decide.ranges.statistics import (
    Sketch,
    averaged_extremes,
    entropy_cut,
    mean_extremes,
    moments,
    percentile_cut,
    sketch_points,
)
from bitwright.errors import DataError, RecipeError
from bitwright.numerics import PositionGrid, QType
from bitwright.recipe import (
    MSE,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MeanExtremes,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    RangeMethod,
)
from bitwright.support.array_types import F32, F64, I64, Array

Range = tuple[float, float] | tuple[F64, F64]


@dataclass(frozen=True, slots=True)
class _Observed:
    """One tensor and the levels it is going to have. Its range contains zero."""

    sketch: Sketch
    qtype: QType
    symmetric: bool
    reduced: bool

    @property
    def low(self) -> float:
        return min(self.sketch.low, 0.0)

    @property
    def high(self) -> float:
        return max(self.sketch.high, 0.0)

    @property
    def largest(self) -> float:
        return max(-self.low, self.high)

    def points(self) -> tuple[F64, F64]:
        return sketch_points(self.sketch)

    def density(self) -> Density:
        make = Density.of_points if isinstance(self.sketch, _Exact) else Density.of_bins
        return make(*self.points())

    def levels(self, low: F64, high: F64) -> Levels:
        return Levels.over(low, high, self.qtype, symmetric=self.symmetric, reduced=self.reduced)


class _Weight(NamedTuple):
    """The rows of a weight, each of which gets a range, and the levels it is going to have."""

    rows: Array
    qtype: QType
    symmetric: bool
    reduced: bool


def choose_range(
    sketch: Sketch,
    method: RangeMethod,
    qtype: QType,
    *,
    symmetric: bool = False,
    reduced: bool = False,
) -> Range:
    """Return the (low, high) that a tensor is quantized over; arrays for per-channel ranges.

    The range contains zero, and ends at the observed extremes at the latest. `symmetric` and
    `reduced` say how the levels will lie, as for `affine_parameters`.
    """
    if not sketch.finite:
        raise DataError("no finite value was observed, so there is no range to choose.")
    found = METHODS[type(method)]
    low, high = found.of_sketch(_Observed(sketch, qtype, symmetric, reduced), method)
    if method.symmetric and not found.centres:
        low, high = _centred(low, high)
    if np.ndim(low):
        return np.asarray(low, np.float64), np.asarray(high, np.float64)
    return float(low), float(high)


def weight_range(
    array: Array,
    method: RangeMethod,
    qtype: QType,
    symmetric: bool,
    axis: int | None = None,
    *,
    reduced: bool = False,
) -> Range:
    """Return the range of a weight, from its exact values; with an axis, one for each channel."""
    rows = _rows(array, axis)
    if not rows.size:
        return (0.0, 0.0) if axis is None else (np.zeros(len(rows)), np.zeros(len(rows)))
    if not np.isfinite(rows).all():
        raise DataError("a weight holds NaN or infinite values; repair the model.")
    weight = _Weight(rows, qtype, symmetric, reduced)
    found = METHODS[type(method)]
    low, high = (found.of_rows or _row_by_row)(weight, method)
    if method.symmetric and not found.centres:
        low, high = _centred(low, high)
    return (float(low[0]), float(high[0])) if axis is None else (low, high)


def _centred(low: Any, high: Any) -> tuple[Any, Any]:
    most = np.maximum(-np.asarray(low), high)
    return -most, most


def sketch_std(sketch: Sketch) -> float:
    """Return the standard deviation of what was observed, for float8 scales."""
    return moments(*sketch_points(sketch))[1]


def _min_max(tensor: _Observed, method: MinMax) -> tuple[Any, Any]:
    sketch, weight = tensor.sketch, method.moving_average
    if method.per_channel:
        if weight is not None:
            raise RecipeError("MinMax takes moving_average or per_channel, not both.")
        if sketch.channel_low is None or sketch.channel_high is None:
            raise DataError("no per-channel extremes were observed; name the tensor's axis.")
        # A channel without a finite value has inf and -inf: like one of zeros.
        return np.minimum(sketch.channel_low, 0.0), np.maximum(sketch.channel_high, 0.0)
    if weight is None:
        return tensor.low, tensor.high
    low, high = averaged_extremes(sketch, weight)
    return min(low, 0.0), max(high, 0.0)


def _mean_extremes(tensor: _Observed, method: MeanExtremes) -> tuple[float, float]:
    low, high = mean_extremes(tensor.sketch)
    return min(low, 0.0), max(high, 0.0)


def _percentile(tensor: _Observed, method: Percentile) -> tuple[float, float]:
    cut = percentile_cut(
        tensor.sketch, method.percentile, symmetric=tensor.symmetric or method.symmetric
    )
    return min(cut[0], 0.0), max(cut[1], 0.0)


def _layerwise_percentile(tensor: _Observed, method: LayerwisePercentile) -> tuple[float, float]:
    cuts = [_percentile(tensor, Percentile(percentile=p)) for p in method.candidates]
    if method.symmetric:
        cuts = [(-max(-low, high), max(-low, high)) for low, high in cuts]
    levels, density = tensor.levels(*np.array(cuts, np.float64).T), tensor.density()
    error = density.error(levels, absolute=method.metric != "mse")
    return cuts[int(np.argmin(error))]  # of equal ones the first


def _entropy(tensor: _Observed, method: Entropy) -> tuple[float, float]:
    # The levels are meant for 8 bits: a finer grid has as many more, a coarser one as many less.
    levels = max(int(method.levels * 2.0 ** (tensor.qtype.bits - 8)), 2)
    cut = entropy_cut(tensor.sketch, method.bins, levels, symmetric=tensor.symmetric)
    low, high = min(cut[0], 0.0), max(cut[1], 0.0)
    whole = tensor.low, tensor.high
    if not method.guarded or (low, high) == whole:
        return low, high
    ends = np.array([whole, (low, high)], np.float64).T
    of_whole, of_cut = tensor.density().error(tensor.levels(*ends))
    return (low, high) if of_cut < of_whole else whole


def _mse(tensor: _Observed, method: MSE) -> tuple[float, float]:
    density = tensor.density()
    values, counts = tensor.points()
    # Clipping at half the mean magnitude is never the best, so the search ends there.
    mean = float(np.abs(values) @ counts) / max(float(counts[values != 0].sum()), 1.0)
    fractions = starting_fractions(mean / 2 / tensor.largest if tensor.largest else 1.0)

    def error(low: F64, high: F64) -> F64:
        return density.error(tensor.levels(low[0], high[0]))[None, :]

    one_end = tensor.symmetric or method.symmetric or tensor.low == 0 or tensor.high == 0
    low, high = least_error_range(
        np.array([tensor.low]), np.array([tensor.high]), error, fractions, one_end
    )
    return float(low[0]), float(high[0])


def _min_mse(tensor: _Observed, method: MinMSE) -> tuple[float, float]:
    grid = position_grid(method, tensor.qtype, symmetric=tensor.symmetric, reduced=tensor.reduced)
    if method.mode == "most-common":
        position = most_common_position(tensor.sketch, grid)
    else:
        position = least_error_position(tensor.density, grid, tensor.low, tensor.high)
    ends = (tensor.low, tensor.high)
    return ends if position is None else grid.ends(position, *ends)


def _row_extremes(weight: _Weight, method: RangeMethod) -> tuple[F64, F64]:
    rows = weight.rows
    return (
        np.minimum(rows.min(axis=1), 0).astype(np.float64),
        np.maximum(rows.max(axis=1), 0).astype(np.float64),
    )


def _row_mse(weight: _Weight, method: MSE) -> tuple[F64, F64]:
    return row_ranges(
        weight.rows,
        weight.qtype,
        symmetric=weight.symmetric,
        reduced=weight.reduced,
        one_end=method.symmetric,
    )


def _row_min_mse(weight: _Weight, method: MinMSE) -> tuple[F64, F64]:
    # All of a weight is one batch, so both modes are the same.
    grid = position_grid(method, weight.qtype, symmetric=weight.symmetric, reduced=weight.reduced)
    low, high = np.array([exact_min_mse(row, grid) for row in weight.rows], np.float64).T
    return low, high


def _row_by_row(weight: _Weight, method: RangeMethod) -> tuple[F64, F64]:
    options = {"symmetric": weight.symmetric, "reduced": weight.reduced}
    found = [choose_range(_Exact(row), method, weight.qtype, **options) for row in weight.rows]
    low, high = np.array(found, np.float64).T
    return low, high


class Method(NamedTuple):
    """How a range method works: on a sketch, and on the rows of a weight."""

    of_sketch: Callable[[_Observed, Any], tuple[Any, Any]]
    of_rows: Callable[[_Weight, Any], tuple[F64, F64]] | None = None
    """From exact values, all rows at once; None: each row as a sketch of its own."""
    centres: bool = False
    """Whether a range that is asked to be symmetric already is."""
    for_floats: bool = False
    """Whether it compares no grids of integers, so that it serves 8-bit floats, too."""


METHODS: dict[type, Method] = {
    MinMax: Method(_min_max, _row_extremes, for_floats=True),
    MeanExtremes: Method(_mean_extremes, _row_extremes, for_floats=True),
    Percentile: Method(_percentile, for_floats=True),
    LayerwisePercentile: Method(_layerwise_percentile),
    Entropy: Method(_entropy),
    Distribution: Method(
        lambda tensor, method: (-tensor.largest, tensor.largest),
        lambda weight, method: _centred(*_row_extremes(weight, method)),
        for_floats=True,
    ),
    MSE: Method(_mse, _row_mse),
    NonOverflow: Method(lambda tensor, method: (tensor.low, tensor.high), _row_extremes),
    MinMSE: Method(_min_mse, _row_min_mse, centres=True),
}


class _Exact:
    """A weight, or a channel of it, in the form of a sketch whose values are exact."""

    def __init__(self, row: Array) -> None:
        self._values, self._counts = np.unique(row, return_counts=True)
        self.low, self.high = float(self._values[0]), float(self._values[-1])
        self.channel_low: F32 | None = None
        self.channel_high: F32 | None = None
        self.finite = row.size
        self.batches = np.array([[self.low, self.high]], np.float32)
        self.votes: dict[PositionGrid, dict[int, int]] = {}

    def values(self) -> Array:
        return self._values

    def counts(self) -> I64:
        return self._counts


def _rows(array: Array, axis: int | None) -> Array:
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    if axis is None:
        return array.reshape(1, -1)
    first = np.moveaxis(array, axis, 0)
    return np.ascontiguousarray(first.reshape(first.shape[0], -1))
