"""Block-wise grids: low-bit weights, one scale and one zero point for each block of a column.

Weights are matrices [K, N] as MatMul reads them. A block is `block_size` consecutive weights of
one column (one output), so scales and zero points are [ceil(K / block_size), N]; the last block
may be shorter. A weight reads back as (code - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.errors import ModelError, RecipeError
from bitwright.numerics.arrays import NUMPY, Arrays, Float
from bitwright.numerics.block_search import (
    DROPPED_DIGITS,
    SHRINK_STEPS,
    Grids,
    is_worth_compiling,
    search_blocks,
)
from bitwright.numerics.row_reading import map_rows
from bitwright.support.array_types import Array

SHRINKS = (1.0, 0.92, 0.84, 0.74, 0.6)
"""How much of a block's range is tried when it may be clipped, and then what is around the best.

With `SHRINK_STEPS`, these nine leave less error than 21 in equal steps from 1 down to a half: on
normal, Laplace and Student-t weights of 2 to 8 bits, in blocks of 32 and 128.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """What a grid looks like: bits a weight, weights a block, and which scales are allowed."""

    bits: int = 4
    block_size: int = 32
    """Of products of n bits a power of two from 16 to 256; or -1 for whole columns."""
    symmetric: bool = False
    """Whether zero is always the middle code, and no zero point is stored."""
    negative_scales: bool = True
    """Whether a symmetric scale may be negative: then the side of the largest magnitude gets the
    extra code, which lowers the error by about a fifth at 4 bits."""
    scale_type: Float = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or self.bits not in range(2, 9):
            raise RecipeError(f"weights in blocks have 2 to 8 bits, not {self.bits!r}.")
        size = self.block_size
        if isinstance(size, bool) or (size != -1 and size < 2):
            raise RecipeError(f"a block has at least 2 weights, or -1 for all, not {size!r}.")

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The code of zero where there is no zero point."""
        return 1 << (self.bits - 1)

    def length(self, rows: int) -> int:
        """Return how many weights a full block of a column of `rows` has."""
        return rows if self.block_size == -1 else self.block_size

    def blocks(self, rows: int) -> int:
        """Return how many blocks a column of `rows` weights has."""
        return -(-rows // self.length(rows))

    def per_weight(self, values: Any, rows: int) -> Any:
        """Return one value for each weight [K, N] (of any `xp`), given those of [blocks, N]."""
        length = self.length(rows)
        if isinstance(values, np.ndarray):
            return np.repeat(values, length, axis=0)[:rows]
        return values.repeat_interleave(length, dim=0)[:rows]  # torch's


@dataclass(frozen=True, slots=True, eq=False)
class BlockScales:
    """Scales and zero points [blocks, N], as arrays of the `xp` that they were made with."""

    scales: Any
    zero_points: Any


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedBlocks:
    """A weight as codes [K, N], scales and zero points [blocks, N].

    `zero_points` is None for symmetric formats, else uint8; floats are allowed where zero points
    need not be integers (GPUs only: see `check_nbits_support`).
    """

    format: BlockFormat
    codes: npt.NDArray[np.uint8]
    scales: Array
    zero_points: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """K and N."""
        rows, columns = self.codes.shape
        return rows, columns

    def columns(self, start: int, stop: int) -> QuantizedBlocks:
        """Return the weights of some outputs."""
        zeros = self.zero_points
        parts = (None if a is None else a[:, start:stop] for a in (self.codes, self.scales, zeros))
        codes, scales, zeros = (None if p is None else np.ascontiguousarray(p) for p in parts)
        assert codes is not None and scales is not None
        return QuantizedBlocks(self.format, codes, scales, zeros)

    def dequantize(self, dtype: npt.DTypeLike = np.float64) -> Array:
        """Return the weights that are stored here, computed in `dtype`."""
        rows = self.shape[0]
        result = self.codes.astype(dtype)
        if self.zero_points is None:
            result -= np.asarray(self.format.middle, dtype)
        else:
            result -= self.format.per_weight(self.zero_points.astype(dtype), rows)
        result *= self.format.per_weight(self.scales.astype(dtype), rows)
        return result


def quantize_in_blocks(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    shrinks: Sequence[float] = (1.0,),
    metric: Any = None,
    xp: Arrays = NUMPY,
) -> QuantizedBlocks:
    """Return a weight rounded to the nearest codes; see `fit_block_scales` for the options."""
    grid = fit_block_scales(weights, format, shrinks=shrinks, metric=metric, xp=xp)
    return round_to_codes(weights, grid, format, xp=xp)


def fit_block_scales(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    shrinks: Sequence[float] = (1.0,),
    steps: Sequence[float] = SHRINK_STEPS,
    metric: Any = None,
    xp: Arrays = NUMPY,
) -> BlockScales:
    """Return the scale and zero point of each block: of those tried, the ones with least error.

    Each of `shrinks` is a part of the block's range to spread the codes over; where there are
    several, the parts that are each of `steps` less and more than the best of them are tried next.
    The error is the sum of squares; with a `metric` [K] weighted by row, with one [blocks, length,
    length] the quadratic form of each block (see `block_diagonals`).
    """
    work = xp.array(weights)
    rows, columns = work.shape
    count = format.blocks(rows)
    scales, zeros = xp.empty(count, columns), xp.empty(count, columns)
    measure = metric_in_blocks(metric, format, rows, xp)
    tries = len(shrinks) + 2 * len(steps) if len(shrinks) > 1 else 0
    if xp is NUMPY and measure.ndim == 2 and tries and is_worth_compiling(work.size, tries):
        grids = grids_of(format, rows, measure.reshape(-1), shrinks, steps)

        def search_columns(start: int, stop: int) -> None:
            own = slice(start, stop)
            if not search_blocks(work[:, own], grids, scales[:, own], zeros[:, own]):
                raise ModelError(_NOT_FINITE)

        map_rows(search_columns, columns, rows)
        return BlockScales(scales, zeros)
    for blocks, sides, part in block_tiles(work, format, xp):
        cost_of = partial(_cost, part, measure=measure[blocks], format=format, xp=xp)
        found = _best(xp.amin(part, 1), xp.amax(part, 1), cost_of, shrinks, steps, format, xp)
        scales[blocks, sides], zeros[blocks, sides] = found
    return BlockScales(scales, zeros)


def grids_of(
    format: BlockFormat,
    rows: int,
    measure: Array,
    shrinks: Sequence[float],
    steps: Sequence[float] = SHRINK_STEPS,
) -> Grids:
    """Return what compiled code tries for the blocks of columns of `rows` weights."""
    return Grids(
        length=format.length(rows),
        measure=measure,
        shrinks=np.asarray(shrinks, np.float32),
        steps=np.asarray(steps if len(shrinks) > 1 else (), np.float32),
        middle=np.float32(format.middle),
        highest=np.float32(format.highest),
        per_step=np.float32(2 / format.highest),
        symmetric=format.symmetric,
        negative_scales=format.negative_scales,
        dropped=DROPPED_DIGITS[format.scale_type],
    )


def _best(
    low: Any,
    high: Any,
    cost_of: Callable[[Any, Any], Any],
    shrinks: Sequence[float],
    steps: Sequence[float],
    format: BlockFormat,
    xp: Arrays,
) -> tuple[Any, Any]:
    """Return the scales and zero points of least cost of all that `fit_block_scales` tries."""
    if not bool((xp.isfinite(low) & xp.isfinite(high)).all()):
        raise ModelError(_NOT_FINITE)
    if len(shrinks) == 1:
        return _parameters(low * shrinks[0], high * shrinks[0], format, xp)
    nothing = xp.zeros(*low.shape)
    least, best = nothing + float("inf"), nothing + shrinks[0]

    def consider(shrink: Any) -> tuple[Any, Any]:
        cost = cost_of(*_parameters(low * shrink, high * shrink, format, xp))
        better = cost < least
        return xp.where(better, cost, least), xp.where(better, shrink, best)

    for shrink in shrinks:
        least, best = consider(nothing + shrink)
    for step in steps:
        around = best
        least, best = consider(around - step)
        least, best = consider(xp.minimum(around + step, nothing + 1))
    return _parameters(low * best, high * best, format, xp)


def fit_shared_scales(
    weights: npt.ArrayLike,
    format: BlockFormat,
    *,
    shrinks: Sequence[float] = (1.0,),
    metric: Any = None,
    xp: Arrays = NUMPY,
) -> BlockScales:
    """Return one scale and zero point for all columns of a block, as `fit_block_scales` does."""
    work = xp.array(weights)
    rows, columns = work.shape
    count = format.blocks(rows)
    low, high = xp.zeros(count, 1) + float("inf"), xp.zeros(count, 1) - float("inf")
    for blocks, _, part in block_tiles(work, format, xp):
        low[blocks, 0] = xp.minimum(low[blocks, 0], xp.amin(xp.amin(part, 2), 1))
        high[blocks, 0] = xp.maximum(high[blocks, 0], xp.amax(xp.amax(part, 2), 1))
    measure = metric_in_blocks(metric, format, rows, xp)

    def cost_of(scale: Any, zero: Any) -> Any:
        cost = xp.zeros(count, 1)
        for blocks, _, part in block_tiles(work, format, xp):
            found = _cost(part, scale[blocks], zero[blocks], measure[blocks], format, xp)
            cost[blocks, 0] += found.sum(axis=1)
        return cost

    scale, zero = _best(low, high, cost_of, shrinks, SHRINK_STEPS, format, xp)
    spread = xp.zeros(count, columns)
    return BlockScales(scale + spread, zero + spread)


def round_to_codes(
    weights: npt.ArrayLike, grid: BlockScales, format: BlockFormat, *, xp: Arrays = NUMPY
) -> QuantizedBlocks:
    """Return the nearest codes of a weight on a grid."""
    return collect(nearest_codes(xp.array(weights), grid, format, xp), grid, format, xp)


def nearest_codes(work: Any, grid: BlockScales, format: BlockFormat, xp: Arrays) -> Any:
    """Return the nearest codes of a weight on a grid, as bytes of `xp`."""
    codes = xp.empty_codes(*work.shape)
    length = format.length(work.shape[0])
    whole = _integers(grid.zero_points, format, xp)
    for blocks, sides, part in block_tiles(work, format, xp):
        scale, zero = grid.scales[blocks, None, sides], grid.zero_points[blocks, None, sides]
        steps = part / scale
        found = xp.rint_(steps) + zero if whole else xp.rint_(steps + zero)
        xp.clip_(found, 0, format.highest)
        target = codes[blocks.start * length : blocks.stop * length, sides]
        target[:] = found.reshape(-1, found.shape[-1])[: len(target)]
    return codes


def values_of(codes: Any, grid: BlockScales, format: BlockFormat, xp: Arrays) -> Any:
    """Return what codes on a grid stand for, in float32 of `xp`."""
    rows = codes.shape[0]
    values = xp.array(codes) - format.per_weight(grid.zero_points, rows)
    values *= format.per_weight(grid.scales, rows)
    return values


def values_of_blocks(blocks: QuantizedBlocks, xp: Arrays = NUMPY) -> Any:
    """Return the weights that are stored, in float32 of `xp`.

    >>> values_of_blocks(quantize_in_blocks([[0.0], [15.0]], BlockFormat())).tolist()
    [[0.0], [15.0]]
    """
    scales = xp.array(blocks.scales)
    zeros = blocks.zero_points
    whole = scales * 0 + blocks.format.middle if zeros is None else xp.array(zeros)
    grid = BlockScales(scales, whole)
    return values_of(xp.bytes(blocks.codes), grid, blocks.format, xp)


def collect(
    codes: Any, grid: BlockScales, format: BlockFormat, xp: Arrays = NUMPY
) -> QuantizedBlocks:
    """Return codes and a grid as one value in numpy, its scales in the format's own type."""
    codes, scales = xp.numpy(codes), NUMPY.array(xp.numpy(grid.scales), format.scale_type)
    if format.symmetric:
        return QuantizedBlocks(format, codes, scales, None)
    zeros = xp.numpy(grid.zero_points)
    if _integers(grid.zero_points, format, xp):
        zeros = zeros.astype(np.uint8)
    return QuantizedBlocks(format, codes, scales, zeros)


def block_diagonals(matrix: Any, format: BlockFormat, *, xp: Arrays = NUMPY) -> Any:
    """Return the square blocks on the diagonal of a matrix [K, K]; the last is filled with zeros.

    With them as `metric`, `fit_block_scales` weighs what each block adds to the output by itself.
    """
    work = xp.array(matrix)
    rows = work.shape[0]
    length, count = format.length(rows), format.blocks(rows)
    result = xp.zeros(count, length, length)
    for block in range(count):
        part = work[block * length : (block + 1) * length, block * length : (block + 1) * length]
        result[block, : part.shape[0], : part.shape[1]] = part
    return result


_NOT_FINITE = "the weight holds NaN or infinity; fix the model or leave it float."


def _parameters(low: Any, high: Any, format: BlockFormat, xp: Arrays) -> tuple[Any, Any]:
    """Return scale and zero point of ranges."""
    nothing = xp.zeros(*low.shape)
    if format.symmetric:
        if format.negative_scales:
            # The side of the larger magnitude gets the code 0, which is 2^(bits-1) steps away.
            scale = xp.where(-low >= high, -low, -high) / format.middle
        else:
            scale = xp.maximum(-low, high) * (2 / format.highest)
        scale = usable_scales(scale, format, xp)
        return scale, nothing + format.middle
    # Zero belongs to every range: otherwise the zero point of a block of one sign lies outside
    # the codes, and clipping it moves the whole block.
    low, high = xp.minimum(low, nothing), xp.maximum(high, nothing)
    scale = usable_scales((high - low) / format.highest, format, xp)
    zero = xp.clip_(xp.rint(-low / scale), 0, format.highest)
    return scale, xp.where(high == low, nothing + format.middle, zero)


def usable_scales(scale: Any, format: BlockFormat, xp: Arrays) -> Any:
    """Return scales as they are stored, none of them zero."""
    stored = xp.rounded(scale, format.scale_type)
    # Where a scale vanishes so do all of the weights, up to what the type can hold.
    smallest = 2.0**-24 if format.scale_type == "float16" else 2.0**-126
    tiny = xp.where(scale == 0, scale + 1, xp.where(scale < 0, scale * 0 - smallest, smallest))
    return xp.where(xp.abs(stored) < smallest, tiny, stored)


def _cost(part: Any, scale: Any, zero: Any, measure: Any, format: BlockFormat, xp: Arrays) -> Any:
    """Return what rounding blocks [n, length, N] on grids [n, N] costs, for each."""
    steps = part * (1 / scale)[:, None]
    error = xp.rint(steps)
    xp.clip_(error, -zero[:, None], (format.highest - zero)[:, None])
    error -= steps
    if measure.ndim == 3:
        squares = (xp.matmul(measure, error) * error).sum(axis=1)
    else:
        error *= error
        squares = xp.matmul(measure[:, None], error)[:, 0]
    return squares * scale * scale


def _integers(zeros: Any, format: BlockFormat, xp: Arrays) -> bool:
    """Whether all zero points are codes; those that are floats may lie outside of them."""
    inside = (zeros >= 0) & (zeros <= format.highest)
    return bool(((zeros == xp.rint(zeros)) & inside).all())


def metric_in_blocks(metric: Any, format: BlockFormat, rows: int, xp: Arrays) -> Any:
    """Return a metric of rows as [blocks, length], and one of blocks as it is; None: all alike."""
    metric = xp.zeros(rows) + 1 if metric is None else xp.array(metric)
    length, count = format.length(rows), format.blocks(rows)
    if tuple(metric.shape) == (count, length, length):
        return metric
    if tuple(metric.shape) != (rows,):
        raise RecipeError(
            f"the metric of a weight with {rows} rows in blocks of {length} has shape ({rows},) or "
            f"({count}, {length}, {length}), not {tuple(metric.shape)}."
        )
    padded = xp.zeros(count * length)
    padded[:rows] = metric
    return padded.reshape(count, length)


def block_tiles(work: Any, format: BlockFormat, xp: Arrays) -> Iterator[tuple[slice, slice, Any]]:
    """Yield (blocks, columns, weights [n, length, columns]) in pieces of about `xp.chunk`."""
    rows, columns = work.shape
    length, count = format.length(rows), format.blocks(rows)
    width = min(columns, max(64, xp.chunk // length))
    step = max(1, xp.chunk // (length * width))
    full = rows // length
    for left in range(0, columns, width):
        sides = slice(left, min(left + width, columns))
        for first in range(0, full, step):
            last = min(first + step, full)
            part = work[first * length : last * length, sides]
            yield slice(first, last), sides, part.reshape(last - first, length, -1)
        if full < count:
            # Zeros widen no range: it holds zero anyway, or is symmetric.
            part = xp.zeros(1, length, sides.stop - left)
            part[0, : rows - full * length] = work[full * length :, sides]
            yield slice(full, count), sides, part
