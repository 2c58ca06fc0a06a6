"""Signal, noise and clipped values of pairs of arrays: running sums in constant memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from bitwright.numerics.compiling import compiled, default_engine
from bitwright.support.array_types import Array

_COMPILED_FROM = 1 << 20
_CHUNK = 1 << 15
_MAX_CHANNELS = 1 << 16
_BLOCK = 512


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB; infinite without noise."""
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10 * math.log10(signal / noise)


def signal_and_noise(expected: Sequence[Array], actual: Sequence[Array]) -> tuple[float, float]:
    """Return the energy of what was expected, and of the difference, over pairs of arrays."""
    signal = noise = 0.0
    for one, other in zip(expected, actual, strict=True):
        wanted = np.asarray(one, np.float64)
        difference = wanted - np.asarray(other, np.float64)
        signal += float(np.vdot(wanted, wanted))
        noise += float(np.vdot(difference, difference))
    return signal, noise


@dataclass(frozen=True, slots=True)
class Codes:
    """How integers stand for numbers: value = (code - zero point) * scale."""

    scale: float
    zero_point: int
    lowest: int
    highest: int

    @property
    def bounds(self) -> tuple[float, float]:
        """Below the first and above the second a number is cut off and not just rounded."""
        low = (self.lowest - self.zero_point - 0.5) * self.scale
        return low, (self.highest - self.zero_point + 0.5) * self.scale


@dataclass(slots=True)
class ErrorSums:
    """Sums over pairs of arrays of any size: energies of signal and noise, extremes, codes."""

    signal: float = 0.0
    noise: float = 0.0
    dot: float = 0.0
    actual: float = 0.0
    largest: float = 0.0
    count: int = 0
    clipped: int = 0
    """How many codes are at an end of their type because the number lies beyond it."""
    low: float = math.inf
    high: float = -math.inf
    """The smallest and the largest code."""
    channel_signal: Array = field(default_factory=lambda: np.zeros(1))
    channel_noise: Array = field(default_factory=lambda: np.zeros(1))

    def add(
        self, expected: Array, actual: Array, *, codes: Codes | None = None, axis: int | None = None
    ) -> None:
        """Add a pair of one shape; with `codes`, `actual` holds integers. `axis` has channels."""
        wanted = np.ascontiguousarray(expected, np.float32)
        given = np.ascontiguousarray(actual)
        if given.dtype.kind not in "iu" or given.dtype.itemsize > 2:
            given = given.astype(np.float32)
        if wanted.size:
            self.merge(_measure(wanted, given, codes, axis))

    def merge(self, other: ErrorSums) -> None:
        """Add what was summed up elsewhere."""
        if not other.count:
            return
        if not self.count:
            self.channel_signal = np.zeros_like(other.channel_signal)
            self.channel_noise = np.zeros_like(other.channel_noise)
        signal, noise = other.channel_signal, other.channel_noise
        if signal.size != self.channel_signal.size:  # the number of channels varies: they are one
            self.channel_signal = self.channel_signal.sum(keepdims=True)
            self.channel_noise = self.channel_noise.sum(keepdims=True)
            signal, noise = signal.sum(keepdims=True), noise.sum(keepdims=True)
        self.channel_signal = self.channel_signal + signal
        self.channel_noise = self.channel_noise + noise
        self.signal += other.signal
        self.noise += other.noise
        self.dot += other.dot
        self.actual += other.actual
        self.largest = max(self.largest, other.largest)
        self.count += other.count
        self.clipped += other.clipped
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def sqnr(self) -> float:
        """Signal to noise in dB, infinite without noise."""
        return decibels(self.signal, self.noise)

    @property
    def channel_sqnr(self) -> float:
        """The same where every channel counts alike, however large its values are."""
        alive = (self.channel_signal > 0) | (self.channel_noise > 0)
        if not alive.any():
            return math.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            share = self.channel_noise[alive] / self.channel_signal[alive]
        # A channel can be lost only once.
        return decibels(1.0, float(np.minimum(np.nan_to_num(share, nan=1.0), 1.0).mean()))

    @property
    def cosine(self) -> float:
        """The cosine of the angle between both."""
        norm = math.sqrt(self.signal * self.actual)
        return self.dot / norm if norm else float(self.noise == 0)


def _measure(expected: Array, actual: Array, codes: Codes | None, axis: int | None) -> ErrorSums:
    """Return the sums of one pair of arrays that are laid out in C order."""
    shape = _layout(expected.shape, axis)
    used = codes or Codes(1.0, 0, 0, 0)
    low, high = used.bounds if codes is not None else (-math.inf, math.inf)
    signal, noise = np.zeros((2, shape[1]))
    # For a few numbers, such as a model's outputs, the compiler is not worth loading.
    small = expected.size <= _COMPILED_FROM or default_engine() == "numpy"
    engine = _compare_numpy if small else compiled(_compare_loop, reorder=True)
    with np.errstate(invalid="ignore", over="ignore"):
        rest = engine(
            expected.reshape(shape),
            actual.reshape(shape),
            np.float32(used.scale),
            np.float32(used.zero_point),
            np.float32(low),
            np.float32(high),
            signal,
            noise,
        )
    dot, other, largest, least, most, cut = (float(value) for value in rest)
    if not math.isfinite(float(signal.sum() + noise.sum()) + dot + other + largest):
        return _measure_non_finite(expected, actual, codes, shape[1])
    return ErrorSums(
        signal=float(signal.sum()),
        noise=float(noise.sum()),
        dot=dot,
        actual=other,
        largest=largest,
        count=expected.size,
        clipped=int(cut),
        low=least,
        high=most,
        channel_signal=signal,
        channel_noise=noise,
    )


def _measure_non_finite(
    expected: Array, actual: Array, codes: Codes | None, channels: int
) -> ErrorSums:
    """Return the same with infinities: where both have one, as in a masked logit, is no error."""
    a, b = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    found = ErrorSums(count=a.size)
    if codes is not None:
        found.low, found.high = float(b.min()), float(b.max())
        found.clipped = _count_clipped(a, *codes.bounds)
        b = (b - codes.zero_point) * codes.scale
    finite = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    difference = a - b
    found.noise, found.largest = (
        float(np.vdot(difference, difference)),
        float(abs(difference).max()),
    )
    if not np.all(same | finite):
        found.noise = found.largest = math.inf
    found.signal, found.dot, found.actual = (
        float(np.vdot(*pair)) for pair in ((a, a), (a, b), (b, b))
    )
    found.channel_signal = np.full(channels, found.signal / channels)
    found.channel_noise = np.full(channels, found.noise / channels)
    return found


def _layout(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return (outer, channels, inner) for an array that is laid out in C order."""
    size = math.prod(shape)
    if axis is None or not shape or not -len(shape) <= axis < len(shape):
        return 1, 1, size
    axis %= len(shape)
    if not 0 < shape[axis] <= _MAX_CHANNELS:
        return 1, 1, size
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _count_clipped(expected: Array, low: float, high: float) -> int:
    return int(np.count_nonzero((expected < low) | (expected > high)))


def _compare_numpy(
    expected: Array,
    actual: Array,
    scale: np.float32,
    zero_point: np.float32,
    low: np.float32,
    high: np.float32,
    signal: Array,
    noise: Array,
) -> tuple[float, ...]:
    dot = other = largest = 0.0
    cut = 0
    outer, channels, inner = expected.shape
    width = max(_CHUNK // channels, 1)
    height = max(width // inner, 1)
    for top, left in product(range(0, outer, height), range(0, inner, width)):
        place = slice(top, top + height), slice(None), slice(left, left + width)
        one = expected[place]
        a = one.astype(np.float64)
        b = ((actual[place].astype(np.float32) - zero_point) * scale).astype(np.float64)
        difference = a - b
        signal += (a * a).sum(axis=(0, 2))
        noise += (difference * difference).sum(axis=(0, 2))
        # Not by BLAS, whose threads wait for each other longer than this takes.
        dot += float((a * b).sum())
        other += float((b * b).sum())
        largest = max(largest, float(np.abs(difference).max(initial=0.0)))
        cut += _count_clipped(one, float(low), float(high))
    return dot, other, largest, float(actual.min()), float(actual.max()), cut


def _compare_loop(
    expected: Any,
    actual: Any,
    scale: Any,
    zero_point: Any,
    low: Any,
    high: Any,
    signal: Any,
    noise: Any,
) -> Any:
    """Compiled body of `ErrorSums.add`: one look at each element.

    Short blocks are added up in float32, which four lanes do at once, and the blocks in float64.
    It is one function because the compiler vectorizes what stands in one nest of loops.
    """
    # Channels that lie side by side are walked along in rows.
    rows = expected.shape[2] == 1
    if rows:
        expected = expected.reshape(expected.shape[0], 1, expected.shape[1])
        actual = actual.reshape(actual.shape[0], 1, actual.shape[1])
    together: Any = 0.0
    other: Any = 0.0
    largest = np.uint32(0)
    least, most = actual[0, 0, 0], actual[0, 0, 0]
    cut: Any = 0
    differences = np.empty(_BLOCK, np.float32)
    bits = differences.view(np.uint32)
    for outer in range(expected.shape[0]):
        for channel in range(expected.shape[1]):
            row, codes = expected[outer, channel], actual[outer, channel]
            for start in range(0, row.size, _BLOCK):
                one, two = row[start : start + _BLOCK], codes[start : start + _BLOCK]
                a_a, b_b, d_d = np.float32(0), np.float32(0), np.float32(0)
                for i in range(one.size):
                    a = one[i]
                    b = (np.float32(two[i]) - zero_point) * scale
                    d = a - b
                    differences[i] = d
                    a_a += a * a
                    b_b += b * b
                    d_d += d * d
                if rows:
                    for i in range(one.size):
                        signal[start + i] += np.float64(one[i]) * np.float64(one[i])
                        noise[start + i] += np.float64(differences[i]) * np.float64(differences[i])
                else:
                    signal[channel] += a_a
                    noise[channel] += d_d
                # Without the sign, bit patterns are ordered as the numbers are, and LLVM
                # vectorizes integer extremes (float ones it does not, because of NaN).
                for i in range(one.size):
                    largest = max(largest, bits[i] & np.uint32(0x7FFFFFFF))
                for i in range(one.size):
                    least = min(least, two[i])
                    most = max(most, two[i])
                if low > -np.inf:
                    for i in range(one.size):
                        cut += np.int64(one[i] < low) + np.int64(one[i] > high)
                together += np.float64(a_a) - np.float64(d_d)
                other += b_b
    # |a - b|^2 = a^2 - 2ab + b^2
    bits[0] = largest
    dot = (together + other) / 2
    return dot, other, np.float64(differences[0]), np.float64(least), np.float64(most), cut
