"""The loops that touch every observed value: a histogram of bfloat16 bins, and extremes.

The histogram loop is written twice, with the same counts. In numpy it takes three times as long;
compiled by numba, the first call takes most of a second and 100 MB, which many values have to earn.
Set `BITWRIGHT_NUMBA=0` to force the numpy version.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine
from bitwright.support.array_types import F32, F64, I64

BINS = 1 << 16
"""One bin for each bfloat16 bit pattern."""

LANES = 2
"""Histograms kept per tensor; neighbouring elements go to different ones.

ReLU outputs are runs of equal values, and an increment that waits for the store of the one before
it costs twice as much. Measured on a Neoverse-N1: one lane 1.4 to 2.0 ns an element, two lanes
1.3 to 1.4, four lanes 1.3 to 1.7 (they crowd each other out of the first-level cache).
"""

_WORTH_COMPILING = 1 << 30
"""Values that a process counts in numpy before it loads the compiler: three seconds more."""

_BLOCK = 1 << 14  # 64 KiB: the second look at a block finds it in the first-level cache.
_CHUNK = 1 << 18  # numpy's calls: large enough to hide their cost, small enough for level two.

# Bit patterns of float32. From _ROUNDS_UP on, nearest-even rounding would give infinity.
_INF = 0x7F800000
_ROUNDS_UP = 0x7F7F8000
TOP_BIN = 0x7F7F
_LEAST_ROUNDED_UP = float(np.array([_ROUNDS_UP], np.uint32).view(np.float32)[0])


class Extremes(NamedTuple):
    """Finite minimum and maximum (inf, -inf when there is none), and what was not finite."""

    low: float
    high: float
    nan: int
    inf: int


def accumulate(values: F32, lanes: I64, *, engine: str | None = None) -> Extremes:
    """Add a flat float32 array to a histogram of shape (LANES, BINS); return its extremes."""
    if engine is None:
        engine = _PROGRESS.engine_for(values.size)
    if engine == "numpy":
        return _accumulate_numpy(values, lanes)
    low, high, nan, inf = compiled(_accumulate_bits)(
        values.view(np.uint32), values.view(np.int32), *lanes
    )
    if low > high:
        return Extremes(np.inf, -np.inf, int(nan), int(inf))
    return Extremes(_from_key(low), _from_key(high), int(nan), int(inf))


def accumulate_every(values: F32, lanes: I64, every: int) -> Extremes:
    """Do the same, but count one value in so many, for as many; extremes are those of all."""
    found = extremes(values)
    # Where it starts differs from batch to batch, but depends on nothing else than the batch.
    start = int(np.float32(found.high).view(np.uint32)) % every
    _accumulate_numpy(np.ascontiguousarray(values[start::every]), lanes, weight=every)
    return found


class _Progress:
    """How much this process has counted so far."""

    def __init__(self) -> None:
        self._counted = 0

    def engine_for(self, size: int) -> str:
        self._counted += size
        return default_engine() if self._counted > _WORTH_COMPILING else "numpy"


_PROGRESS = _Progress()


def extremes(values: F32) -> Extremes:
    """Return the extremes of a float32 array, ignoring and counting what is not finite.

    Plain numpy: its reductions are vectorized and run at memory speed (0.3 ns an element), so
    min-max calibration never has to load the compiler.
    """
    low, high, nan, inf = np.inf, -np.inf, 0, 0
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK]
        least, most = float(chunk.min()), float(chunk.max())
        # A NaN anywhere makes both NaN, so one look at the results clears the whole chunk.
        if not (np.isfinite(least) and np.isfinite(most)):
            finite = chunk[np.isfinite(chunk)]
            chunk_nan = int(np.isnan(chunk).sum())
            nan += chunk_nan
            inf += chunk.size - finite.size - chunk_nan
            if not finite.size:
                continue
            least, most = float(finite.min()), float(finite.max())
        low, high = min(low, least), max(high, most)
    return Extremes(low, high, nan, inf)


def channel_extremes(values: F32, axis: int) -> tuple[F32, F32]:
    """Return the finite minimum and maximum of each channel."""
    others = tuple(a for a in range(values.ndim) if a != axis % values.ndim)
    with np.errstate(invalid="ignore"):
        low = values.min(axis=others, initial=np.inf)
        high = values.max(axis=others, initial=-np.inf)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.isfinite(values)
        low = values.min(axis=others, initial=np.inf, where=finite)
        high = values.max(axis=others, initial=-np.inf, where=finite)
    return low, high


def channel_sums(values: F32, axis: int) -> F64:
    """Return the sum of each channel, added up in float64."""
    others = tuple(a for a in range(values.ndim) if a != axis % values.ndim)
    with np.errstate(invalid="ignore"):
        return np.asarray(values.sum(axis=others, dtype=np.float64))


def used_bins(histogram: I64) -> I64:
    """Return the bins of finite values that hold any, in ascending order of value, without -0."""
    used = histogram != 0  # of booleans, numpy finds those that are set much faster
    negative = np.flatnonzero(used[0x8001 : 0x8000 + TOP_BIN + 1]) + 0x8001
    return np.concatenate([negative[::-1], np.flatnonzero(used[: TOP_BIN + 1])])


def values_of(bins: I64) -> F32:
    """Return the values that bins stand for."""
    return (bins.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _accumulate_numpy(values: F32, lanes: I64, weight: int = 1) -> Extremes:
    low, high, nan, inf = np.inf, -np.inf, 0, 0
    buffer = np.empty(min(values.size, _CHUNK), np.uint32)
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK]
        found = extremes(chunk)
        if found.nan or found.inf:
            chunk = chunk[np.isfinite(chunk)]
        bits = chunk.view(np.uint32)
        bins = buffer[: bits.size]
        np.right_shift(bits, np.uint32(16), out=bins)
        bins &= np.uint32(1)
        bins += bits
        bins += np.uint32(0x7FFF)
        bins >>= np.uint32(16)
        if max(-found.low, found.high) >= _LEAST_ROUNDED_UP:
            # Finite values that would round to infinity stay in the largest finite bin.
            bins -= (bins & np.uint32(0x7FFF)) > TOP_BIN
        if bins.size < BINS:
            np.add.at(lanes[0], bins.astype(np.intp), weight)
        else:
            counts = np.bincount(bins)
            used = np.flatnonzero(counts != 0)  # leaves untouched pages without memory
            lanes[0, used] += weight * counts[used]
        low, high = min(low, found.low), max(high, found.high)
        nan, inf = nan + found.nan, inf + found.inf
    return Extremes(low, high, nan, inf)


def _from_key(key: int) -> float:
    """Undo the order-preserving map of float32 bit patterns to integers."""
    bits = key if key >= 0 else key ^ 0x7FFFFFFF
    return float(np.array([bits & 0xFFFFFFFF], np.uint32).view(np.float32)[0])


def _accumulate_bits(bits: Any, signed: Any, first: Any, second: Any) -> Any:
    """Compiled body of `accumulate`; extremes come back as order-preserving integers.

    One function, because both ways through a block count into the same registers.
    """
    half, one, shift = np.uint64(0x7FFF), np.uint64(1), np.uint64(16)
    low_key: Any = np.int64(1 << 62)
    high_key: Any = np.int64(-(1 << 62))
    nan, inf = 0, 0
    for start in range(0, bits.size, _BLOCK):
        # Slices, so that the loops below count from zero and need no check for negative indices.
        block, signed_block = bits[start : start + _BLOCK], signed[start : start + _BLOCK]
        # Float extremes as four integer reductions, which LLVM vectorizes (float ones it does
        # not, because of NaN): bit patterns of one sign are ordered like integers.
        least, most = np.uint32(0xFFFFFFFF), np.uint32(0)
        signed_least, signed_most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        for i in range(block.size):
            least = min(least, block[i])
            most = max(most, block[i])
            signed_least = min(signed_least, signed_block[i])
            signed_most = max(signed_most, signed_block[i])
        if signed_most < _ROUNDS_UP and most < 0x80000000 + _ROUNDS_UP:
            low = np.int64(least)
            if most >= 0x80000000:  # there is a negative value, and the largest of these bits
                low = -np.int64(most - 0x80000000) - 1  # is the least float
            high = np.int64(signed_most)
            if signed_most < 0:
                high = -(np.int64(signed_least) + 0x80000000) - 1
            low_key = min(low_key, low)
            high_key = max(high_key, high)
            even = block.size // 2 * 2
            for i in range(0, even, 2):
                a = np.uint64(block[i])
                b = np.uint64(block[i + 1])
                first[(a + half + ((a >> shift) & one)) >> shift] += 1
                second[(b + half + ((b >> shift) & one)) >> shift] += 1
            if even < block.size:
                a = np.uint64(block[even])
                first[(a + half + ((a >> shift) & one)) >> shift] += 1
            continue
        for i in range(block.size):
            size = np.int64(block[i]) & 0x7FFFFFFF
            if size > _INF:
                nan += 1
            elif size == _INF:
                inf += 1
            else:
                negative = np.int64(block[i]) >= 0x80000000
                key = -size - 1 if negative else size
                low_key = min(low_key, key)
                high_key = max(high_key, key)
                rounded: Any = min((size + 0x7FFF + ((size >> 16) & 1)) >> 16, TOP_BIN)
                first[rounded + (0x8000 if negative else 0)] += 1
    return low_key, high_key, nan, inf
