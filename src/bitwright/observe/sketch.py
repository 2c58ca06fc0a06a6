"""The sketch of a tensor: a mergeable statistic of one streaming pass."""

from __future__ import annotations

from array import array as packed_array
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import DataError
from bitwright.numerics.positions import PositionGrid
from bitwright.observe import kernels
from bitwright.observe.value_counts import ValueCounts
from bitwright.support.array_types import F32, F64, I64, Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SketchState:
    """A sketch as plain values: what is written to a file or sent to another process."""

    histogram: bool
    channel_axis: int | None
    low: float
    high: float
    count: int
    nan: int
    inf: int
    bins: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.uint64]
    batches: F32
    channels: F32
    """Shape (2, channels): the minima, then the maxima."""
    votes: I64
    """Rows of (qmin, qmax, centred, position, count); a grid without votes has a count of 0."""
    mean_axis: int | None
    sums: F64
    """One for each channel along `mean_axis`."""


class TensorSketch:
    """Exact extremes and counts of a tensor, and a histogram over the 65,536 bfloat16 values.

    Sketches form a monoid: `TensorSketch.empty()` is neutral, `|` merges, and how the data was
    cut into batches, shards or machines makes no difference. Only `batches` (the extremes of each
    update, for moving averages) keeps the order in which they came, and `votes` (which position
    of a power-of-two grid is best for each update) the cut into batches. Sums of channels, where
    `mean_axis` asks for them, are added up in two float64, and agree in the first.

    >>> sketch = TensorSketch.empty()
    >>> sketch.update(np.array([0.0, -0.0, 1.5, 6.0, np.nan], np.float32))
    >>> sketch.low, sketch.high, sketch.finite, sketch.nan
    (0.0, 6.0, 4, 1)
    >>> sketch.values(), sketch.counts()
    (array([0. , 1.5, 6. ], dtype=float32), array([2, 1, 1]))
    >>> both = sketch | sketch
    >>> both.counts()
    array([4, 2, 2])
    """

    __slots__ = tuple(
        "_counts _lows_highs _rest _sparse _sum channel_axis channel_high channel_low count high "
        "inf low mean_axis most_counted nan remembered votes".split()
    )

    def __init__(
        self,
        *,
        histogram: bool = True,
        channel_axis: int | None = None,
        mean_axis: int | None = None,
        grids: Iterable[PositionGrid] = (),
        most_counted: int | None = None,
    ) -> None:
        self.low = np.inf
        """The least finite value, inf while there is none."""
        self.high = -np.inf
        self.count = 0
        """Values seen, the non-finite ones included."""
        self.nan = 0
        self.inf = 0
        self.most_counted = most_counted
        """About how many values of a batch the histogram counts, each for its neighbours, too."""
        self.channel_axis = channel_axis
        self.channel_low: F32 | None = None
        self.channel_high: F32 | None = None
        self.mean_axis = mean_axis
        # The sum of each channel, and what its rounding left of it: however parts are merged, the
        # two together round to the same.
        self._sum: F64 | None = None
        self._rest: F64 = np.zeros(0)
        self._counts = ValueCounts() if histogram else None
        self._sparse: tuple[F32, I64] | None = None
        # Lows and highs in turn: as tuples they would take 14 times the memory.
        self._lows_highs = packed_array("f")
        self.votes: dict[PositionGrid, Counter[int]] = {grid: Counter() for grid in grids}
        """For each grid, for how many batches each position was the best."""
        self.remembered: dict[Hashable, Any] = {}
        """What others found in it, by what they asked; the next batch makes it void."""

    @classmethod
    def empty(cls, **options: Any) -> TensorSketch:
        """Return the neutral element; without a histogram only extremes are kept."""
        return cls(**options)

    @classmethod
    def of(cls, *arrays: npt.ArrayLike, histogram: bool = True) -> TensorSketch:
        """Return the sketch of these arrays, each one batch."""
        sketch = cls(histogram=histogram)
        for array in arrays:
            sketch.update(np.asarray(array))
        return sketch

    @property
    def finite(self) -> int:
        """How many finite values were seen."""
        return self.count - self.nan - self.inf

    @property
    def batches(self) -> F32:
        """One (min, max) row for each update that brought a finite value, in order."""
        return np.array(self._lows_highs, np.float32).reshape(-1, 2)

    @property
    def channel_sum(self) -> F64 | None:
        """The sum of each channel along `mean_axis`; None where none was asked for, or seen."""
        return None if self._sum is None else self._sum + self._rest

    @property
    def channel_mean(self) -> F64 | None:
        """The mean of each channel along `mean_axis`; None where none was asked for, or seen."""
        sums = self.channel_sum
        if sums is None:
            return None
        mean: F64 = sums / (self.count / sums.size)
        return mean

    @property
    def has_histogram(self) -> bool:
        """Whether anything but extremes was kept."""
        return self._counts is not None

    def update(self, array: Array, *, engine: str | None = None) -> None:
        """Add one batch of values. Other float types are converted to float32."""
        values = _as_float32(array)
        if not values.size:
            return
        flat = values.reshape(-1)
        self.remembered.clear()
        if self._counts is None:
            found = kernels.extremes(flat)
        else:
            every = _step(flat.size, self.most_counted)
            found = self._counts.add(flat, every, engine=engine)
            self._sparse = None
        self.count += flat.size
        self.nan += found.nan
        self.inf += found.inf
        if found.low <= found.high:
            low, high = found.low + 0.0, found.high + 0.0  # -0 becomes 0
            self.low = min(self.low, low)
            self.high = max(self.high, high)
            self._lows_highs.extend((low, high))
        if self.channel_axis is not None:
            _check_axis(values, self.channel_axis, "ranges")
            self._merge_channels(*kernels.channel_extremes(values, self.channel_axis))
        if self.mean_axis is not None:
            _check_axis(values, self.mean_axis, "means")
            self._merge_sums(kernels.channel_sums(values, self.mean_axis))
        for grid, votes in self.votes.items():
            position = grid.best_position(flat)
            if position is not None:
                votes[position] += 1

    def _merge_sums(self, sums: F64, rest: F64 | float = 0.0) -> None:
        if self._sum is None:
            self._sum, self._rest = sums, np.zeros_like(sums) + rest
            return
        _check_channels(self._sum, sums, "means")
        # The error of a sum is a float64 itself (Knuth, TAOCP 2, 4.2.2, theorem B).
        with np.errstate(invalid="ignore"):
            total = self._sum + sums
            added = total - self._sum
            lost = (self._sum - (total - added)) + (sums - added)
        lost[~np.isfinite(lost)] = 0.0  # of an infinite sum nothing is lost
        self._sum, self._rest = total, self._rest + (lost + rest)

    def _merge_channels(self, low: F32, high: F32) -> None:
        if self.channel_low is None or self.channel_high is None:
            self.channel_low, self.channel_high = low.copy(), high.copy()
            return
        _check_channels(self.channel_low, low, "ranges")
        np.minimum(self.channel_low, low, out=self.channel_low)
        np.maximum(self.channel_high, high, out=self.channel_high)

    def __or__(self, other: TensorSketch) -> TensorSketch:
        if not isinstance(other, TensorSketch):
            return NotImplemented
        if self._detail != other._detail:
            raise DataError(
                "sketches with and without histograms, or with different channel axes or grids, "
                "do not merge; observe both parts with the same detail."
            )
        merged = type(self)(
            histogram=self.has_histogram, channel_axis=self.channel_axis, mean_axis=self.mean_axis
        )
        merged.low = min(self.low, other.low)
        merged.high = max(self.high, other.high)
        merged.count = self.count + other.count
        merged.nan = self.nan + other.nan
        merged.inf = self.inf + other.inf
        merged._lows_highs = self._lows_highs + other._lows_highs
        for part in (self, other):
            if merged._counts is not None and part._counts is not None:
                merged._counts.merge(part._counts)
            if part.channel_low is not None and part.channel_high is not None:
                merged._merge_channels(part.channel_low, part.channel_high)
            if part._sum is not None:
                merged._merge_sums(part._sum, part._rest)
            for grid, votes in part.votes.items():
                merged.votes.setdefault(grid, Counter()).update(votes)
        merged.pack()
        return merged

    def pack(self) -> None:
        """Give back the memory that only counting takes: what is at rest has no use for it."""
        if self._counts is not None:
            self._counts.pack()

    @property
    def _detail(self) -> tuple[Any, ...]:
        return self.has_histogram, self.channel_axis, self.mean_axis, set(self.votes)

    def histogram(self) -> I64:
        """Return the count of each bfloat16 bit pattern."""
        if self._counts is None:
            raise DataError(
                "only extremes were observed, and this range method needs the histogram; "
                "observe with detail='histogram'."
            )
        return self._counts.total()

    def values(self) -> F32:
        """Return the occupied bins' values, ascending, the outermost within [low, high]."""
        return self._points()[0]

    def counts(self) -> I64:
        """Return how often each of `values()` was seen."""
        return self._points()[1]

    def _points(self) -> tuple[F32, I64]:
        if self._sparse is None:
            histogram = self.histogram()
            histogram[0] += histogram[0x8000]  # both zeros are zero
            bins = kernels.used_bins(histogram)
            with np.errstate(invalid="ignore"):
                low, high = np.float32(self.low), np.float32(self.high)
                clipped = np.clip(kernels.values_of(bins), low, high)
            self._sparse = clipped, histogram[bins]
        return self._sparse

    def state(self) -> SketchState:
        """Return everything as plain values, the histogram without its empty bins."""
        histogram = self.histogram() if self.has_histogram else np.zeros(0, np.int64)
        used = np.flatnonzero(histogram)
        channels, sums = np.zeros((2, 0), np.float32), self.channel_sum
        if self.channel_low is not None and self.channel_high is not None:
            channels = np.stack([self.channel_low, self.channel_high])
        return SketchState(
            histogram=self.has_histogram,
            channel_axis=self.channel_axis,
            low=self.low,
            high=self.high,
            count=self.count,
            nan=self.nan,
            inf=self.inf,
            bins=used.astype(np.uint16),
            counts=histogram[used].astype(np.uint64),
            batches=self.batches,
            channels=channels,
            votes=_vote_rows(self.votes),
            mean_axis=self.mean_axis,
            sums=np.zeros(0) if sums is None else sums,
        )

    @classmethod
    def from_state(cls, state: SketchState) -> TensorSketch:
        """Return the sketch that gave this state."""
        grids = [PositionGrid(int(r[0]), int(r[1]), bool(r[2])) for r in state.votes]
        sketch = cls(
            histogram=state.histogram,
            channel_axis=state.channel_axis,
            mean_axis=state.mean_axis,
            grids=grids,
        )
        for grid, (position, count) in zip(grids, state.votes[:, 3:].tolist(), strict=True):
            if count:
                sketch.votes[grid][position] = count
        sketch.low, sketch.high = state.low, state.high
        sketch.count, sketch.nan, sketch.inf = state.count, state.nan, state.inf
        if state.histogram:
            sketch._counts = ValueCounts(state.bins, state.counts)
        sketch._lows_highs = packed_array("f", state.batches.astype(np.float32).tobytes())
        if state.channels.size:
            sketch._merge_channels(*state.channels)
        if state.sums.size:
            sketch._merge_sums(state.sums)
        return sketch

    def __reduce__(self) -> tuple[Any, ...]:
        # The sparse state: a pickle of a dense histogram would be a megabyte.
        return _restored, (self.state(), self._sum, self._rest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSketch):
            return NotImplemented
        mine, theirs = self.state(), other.state()
        return all(
            np.array_equal(getattr(mine, field.name), getattr(theirs, field.name))
            for field in fields(SketchState)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kept = "histogram" if self.has_histogram else "extremes"
        return f"<TensorSketch of {self.count} values in [{self.low:g}, {self.high:g}], {kept}>"


def _restored(state: SketchState, total: F64 | None, rest: F64) -> TensorSketch:
    """Return a sketch from another process, with sums that are as exact as they were there."""
    sketch = TensorSketch.from_state(state)
    sketch._sum, sketch._rest = total, rest
    return sketch


def _step(size: int, most: int | None) -> int:
    """Return the step that leaves about so many values: odd, as most rows of tensors are not."""
    return 1 if most is None or size <= most else -(-size // most) | 1


def _vote_rows(votes: Mapping[PositionGrid, Counter[int]]) -> I64:
    rows = [
        (grid.qmin, grid.qmax, grid.centred, position, count)
        for grid in sorted(votes)
        for position, count in (sorted(votes[grid].items()) or [(0, 0)])
    ]
    return np.array(rows, np.int64).reshape(-1, 5)


def _check_channels(known: Array, new: Array, what: str) -> None:
    if known.shape != new.shape:
        raise DataError(
            f"the number of channels changed from {known.size} to {new.size} "
            f"between samples; per-channel {what} need the same number throughout."
        )


def _check_axis(values: F32, axis: int, what: str) -> None:
    if not -values.ndim <= axis < values.ndim:
        raise DataError(
            f"a tensor of shape {values.shape} has no axis {axis} to keep per-channel {what} "
            "of; observe it per tensor."
        )


def _as_float32(array: Array) -> F32:
    if array.dtype == np.float32:
        return np.ascontiguousarray(array) if array.ndim else array.reshape(1)
    # numpy calls bfloat16 and the float8 types (of ml_dtypes) void-like, kind "V".
    if array.dtype.kind != "f" and "float" not in array.dtype.name:
        raise DataError(f"only float tensors can be observed, not {array.dtype.name}.")
    with np.errstate(over="ignore"):  # a float64 beyond float32 counts as infinite
        return np.atleast_1d(np.ascontiguousarray(array.astype(np.float32)))
