"""From what was observed of a tensor to the range that is quantized: one function a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.decide.ranges.density import Density, Grid
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
    moments,
    percentile_cut,
    sketch_points,
)
from bitwright.errors import DataError, RecipeError
from bitwright.numerics.positions import PositionGrid
from bitwright.numerics.types import QType
from bitwright.recipe import (
    MSE,
    Distribution,
    Entropy,
    LayerwisePercentile,
    MinMax,
    MinMSE,
    NonOverflow,
    Percentile,
    RangeMethod,
)

__all__ = ["Range", "Sketch", "choose_range", "sketch_std", "weight_range"]

F64 = npt.NDArray[np.float64]
Range = tuple[float, float] | tuple[F64, F64]


@dataclass(frozen=True, slots=True)
class _Case:
    """One tensor and the grid it is going to lie on. Its range contains zero."""

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

    def grid(self, low: F64, high: F64) -> Grid:
        return Grid.over(low, high, self.qtype, symmetric=self.symmetric, reduced=self.reduced)


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
    `reduced` say how the grid will be laid, as for `affine_parameters`.

    >>> from bitwright.numerics.types import UINT8
    >>> from bitwright.observe import TensorSketch
    >>> choose_range(TensorSketch.of([1.0, 5.0]), MinMax(), UINT8)
    (0.0, 5.0)
    >>> choose_range(TensorSketch.of([-1.0, 5.0]), MinMax(symmetric=True), UINT8)
    (-5.0, 5.0)
    """
    if not sketch.finite:
        raise DataError("no finite value was observed, so there is no range to choose.")
    case = _Case(sketch, qtype, symmetric, reduced)
    low, high = METHODS[type(method)](case, method)
    if method.symmetric and not isinstance(method, MinMSE):  # whose grid is centred already
        most = np.maximum(-np.asarray(low), high)
        low, high = -most, most
    if np.ndim(low):
        return np.asarray(low, np.float64), np.asarray(high, np.float64)
    return float(low), float(high)


def weight_range(
    array: npt.NDArray[Any],
    method: RangeMethod,
    qtype: QType,
    symmetric: bool,
    axis: int | None = None,
    *,
    reduced: bool = False,
) -> Range:
    """Return the range of a weight, from its exact values; with an axis, one for each channel.

    >>> from bitwright.numerics.types import INT8
    >>> weight = np.array([[1.0, -2.0], [0.5, 0.25]], np.float32)
    >>> weight_range(weight, MinMax(), INT8, True, axis=0)
    (array([-2.,  0.]), array([1. , 0.5]))
    """
    rows = _rows(array, axis)
    if not rows.size:
        return (0.0, 0.0) if axis is None else (np.zeros(len(rows)), np.zeros(len(rows)))
    if not np.isfinite(rows).all():
        raise DataError("a weight holds NaN or infinite values; repair the model.")
    if isinstance(method, MinMax | NonOverflow | Distribution):
        low = np.minimum(rows.min(axis=1), 0).astype(np.float64)
        high = np.maximum(rows.max(axis=1), 0).astype(np.float64)
        if method.symmetric or isinstance(method, Distribution):
            high = np.maximum(-low, high)
            low = -high
    elif isinstance(method, MSE):
        low, high = _weight_mse(rows, method, qtype, symmetric, reduced)
    elif isinstance(method, MinMSE):
        # All of a weight is one batch, so both modes are the same.
        grid = position_grid(method, qtype, symmetric=symmetric, reduced=reduced)
        low, high = np.array([exact_min_mse(row, grid) for row in rows], np.float64).T
    else:
        found = [
            choose_range(_Exact(row), method, qtype, symmetric=symmetric, reduced=reduced)
            for row in rows
        ]
        low, high = np.array(found, np.float64).T
    return (float(low[0]), float(high[0])) if axis is None else (low, high)


def sketch_std(sketch: Sketch) -> float:
    """Return the standard deviation of what was observed, for float8 scales.

    >>> from bitwright.observe import TensorSketch
    >>> sketch_std(TensorSketch.of([-1.0, 1.0]))
    1.0
    """
    return moments(*sketch_points(sketch))[1]


def _min_max(case: _Case, method: MinMax) -> tuple[Any, Any]:
    sketch, weight = case.sketch, method.moving_average
    if method.per_channel:
        if weight is not None:
            raise RecipeError("MinMax takes moving_average or per_channel, not both.")
        if sketch.channel_low is None or sketch.channel_high is None:
            raise DataError("no per-channel extremes were observed; name the tensor's axis.")
        # A channel without a finite value has inf and -inf: like one of zeros.
        return np.minimum(sketch.channel_low, 0.0), np.maximum(sketch.channel_high, 0.0)
    if weight is None:
        return case.low, case.high
    low, high = averaged_extremes(sketch, weight)
    return min(low, 0.0), max(high, 0.0)


def _percentile(case: _Case, method: Percentile) -> tuple[float, float]:
    cut = percentile_cut(
        case.sketch, method.percentile, symmetric=case.symmetric or method.symmetric
    )
    return min(cut[0], 0.0), max(cut[1], 0.0)


def _layerwise_percentile(case: _Case, method: LayerwisePercentile) -> tuple[float, float]:
    cuts = [_percentile(case, Percentile(percentile=p)) for p in method.candidates]
    if method.symmetric:
        cuts = [(-max(-low, high), max(-low, high)) for low, high in cuts]
    grid, density = case.grid(*np.array(cuts, np.float64).T), case.density()
    error = density.error(grid) if method.metric == "mse" else density.absolute_error(grid)
    return cuts[int(np.argmin(error))]  # of equal ones the first


def _entropy(case: _Case, method: Entropy) -> tuple[float, float]:
    # The levels are meant for 8 bits: a finer grid has as many more, a coarser one as many less.
    levels = max(int(method.levels * 2.0 ** (case.qtype.bits - 8)), 2)
    cut = entropy_cut(case.sketch, method.bins, levels, symmetric=case.symmetric)
    return min(cut[0], 0.0), max(cut[1], 0.0)


def _extremes(case: _Case, method: NonOverflow) -> tuple[float, float]:
    return case.low, case.high


def _symmetric_extremes(case: _Case, method: Distribution) -> tuple[float, float]:
    return -case.largest, case.largest


_REFINEMENTS = (0.95, 0.975, 0.9875)


def _shares(least: float) -> F64:
    """Return the shares of the full range to try first, so close that no valley is missed."""
    least = min(max(least, 2.0**-12), 0.4)
    few = int(np.ceil(np.log(0.4 / least) / 0.4))
    return np.concatenate(
        [np.geomspace(least, 0.4, few, endpoint=False), np.linspace(0.4, 1.0, 16)]
    )


def _mse(case: _Case, method: MSE) -> tuple[float, float]:
    density = case.density()
    values, counts = case.points()
    # Clipping at half the mean magnitude is never the best, so the search ends there.
    mean = float(np.abs(values) @ counts) / max(float(counts[values != 0].sum()), 1.0)
    shares = _shares(mean / 2 / case.largest if case.largest else 1.0)

    def error(low: F64, high: F64) -> F64:
        return density.error(case.grid(low[0], high[0]))[None, :]

    one_end = case.symmetric or method.symmetric or case.low == 0 or case.high == 0
    low, high = _least_error(np.array([case.low]), np.array([case.high]), error, shares, one_end)
    return float(low[0]), float(high[0])


def _least_error(
    low: F64, high: F64, error: Callable[[F64, F64], F64], shares: F64, one_end: bool
) -> tuple[F64, F64]:
    """Return the ranges within (low, high), an array each, of the least error.

    `error` takes candidates (one row for each range; they broadcast) and returns their errors.
    Both ends shrink together first, then each alone, then both by small steps around the best.
    """
    rows = np.arange(low.size)[:, None]
    best_low, best_high = low[:, None], high[:, None]
    least = error(best_low, best_high)

    def consider(lows: F64, highs: F64) -> None:
        nonlocal best_low, best_high, least
        found = error(lows, highs)
        first = np.argmin(found, axis=1)[:, None]
        of_first = found[rows, first]
        better = of_first < least
        if better.any():
            least = np.where(better, of_first, least)
            best_low = np.where(better, _chosen(lows, rows, first), best_low)
            best_high = np.where(better, _chosen(highs, rows, first), best_high)

    if one_end:
        # One number: the largest magnitude that is kept.
        most = np.maximum(-low, high)[:, None]

        def keep(size: F64) -> None:
            consider(np.maximum(-size, low[:, None]), np.minimum(size, high[:, None]))

        keep(most * shares)
        for step in _REFINEMENTS:
            root = np.sqrt(step)
            keep(np.maximum(-best_low, best_high) * np.array([step, root, 1 / root, 1 / step]))
        return best_low[:, 0], best_high[:, 0]
    consider(low[:, None] * shares, high[:, None] * shares)
    consider(low[:, None] * shares, best_high)
    consider(best_low, high[:, None] * shares)
    for step in _REFINEMENTS:
        around = np.array([step, 1.0, 1 / step])
        consider(
            np.maximum(best_low * np.tile(around, 3), low[:, None]),
            np.minimum(best_high * np.repeat(around, 3), high[:, None]),
        )
    return best_low[:, 0], best_high[:, 0]


def _chosen(ends: F64, rows: Any, columns: Any) -> F64:
    """Return one end of each row; a single column stands for all."""
    return ends if ends.shape[1] == 1 else ends[rows, columns]


def _min_mse(case: _Case, method: MinMSE) -> tuple[float, float]:
    grid = position_grid(method, case.qtype, symmetric=case.symmetric, reduced=case.reduced)
    if method.mode == "most-common":
        position = most_common_position(case.sketch, grid)
    else:
        position = least_error_position(case.density, grid, case.low, case.high)
    return (case.low, case.high) if position is None else grid.ends(position, case.low, case.high)


METHODS: dict[type, Callable[[_Case, Any], tuple[Any, Any]]] = {
    MinMax: _min_max,
    Percentile: _percentile,
    LayerwisePercentile: _layerwise_percentile,
    Entropy: _entropy,
    Distribution: _symmetric_extremes,
    MSE: _mse,
    NonOverflow: _extremes,
    MinMSE: _min_mse,
}


class _Exact:
    """A weight, or a channel of it, in the form of a sketch whose values are exact."""

    def __init__(self, row: npt.NDArray[Any]) -> None:
        self._values, self._counts = np.unique(row, return_counts=True)
        self.low, self.high = float(self._values[0]), float(self._values[-1])
        self.channel_low: npt.NDArray[np.float32] | None = None
        self.channel_high: npt.NDArray[np.float32] | None = None
        self.finite = row.size
        self.batches = np.array([[self.low, self.high]], np.float32)
        self.votes: dict[PositionGrid, dict[int, int]] = {}

    def values(self) -> npt.NDArray[Any]:
        return self._values

    def counts(self) -> npt.NDArray[np.int64]:
        return self._counts


def _rows(array: npt.NDArray[Any], axis: int | None) -> npt.NDArray[Any]:
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    if axis is None:
        return array.reshape(1, -1)
    first = np.moveaxis(array, axis, 0)
    return np.ascontiguousarray(first.reshape(first.shape[0], -1))


def _weight_mse(
    rows: npt.NDArray[Any], method: MSE, qtype: QType, symmetric: bool, reduced: bool
) -> tuple[F64, F64]:
    low = np.minimum(rows.min(axis=1), 0).astype(np.float64)
    high = np.maximum(rows.max(axis=1), 0).astype(np.float64)
    # The largest of each row becomes 1, so that no square overflows or vanishes.
    sizes = np.maximum(-low, high)
    sizes[sizes == 0] = 1.0
    # Few rows at a time, so that they and the temporary stay in the cache.
    height = max(1, (1 << 16) // rows.shape[1])
    shares = _shares(0.05)  # no weight is as long-tailed as an activation can be
    for start in range(0, len(rows), height):
        chosen = slice(start, start + height)
        size = sizes[chosen]
        part = rows[chosen] / size[:, None].astype(rows.dtype)

        def error(lows: F64, highs: F64, part: npt.NDArray[Any] = part) -> F64:
            columns = []
            for a, b in zip(*(ends.T for ends in np.broadcast_arrays(lows, highs)), strict=True):
                grid = Grid.over(
                    a[:, None], b[:, None], qtype, symmetric=symmetric, reduced=reduced
                )
                columns.append(grid.squared_error(part).sum(axis=1, dtype=np.float64))
            return np.stack(columns, axis=1)

        one_end = symmetric or method.symmetric
        ends = _least_error(low[chosen] / size, high[chosen] / size, error, shares, one_end)
        low[chosen] = np.maximum(ends[0] * size, low[chosen])
        high[chosen] = np.minimum(ends[1] * size, high[chosen])
    if method.symmetric:
        high = np.maximum(-low, high)
        low = -high
    return low, high
