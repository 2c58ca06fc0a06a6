"""The squared error that quantizing a tensor would cause, from its histogram."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bitwright.numerics import QType, middle_of
from bitwright.support.array_types import F64, Array

_MAX_INTERVALS = 384
"""Finer densities change the chosen range by less than the search's own step."""

_TAIL_BINS = 160
"""Bins at either end that are not merged."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The values that a quantized tensor can take: k * scale from bottom to top (arrays)."""

    scale: F64
    bottom: F64
    top: F64

    @classmethod
    def over(
        cls, low: F64, high: F64, qtype: QType, *, symmetric: bool = False, reduced: bool = False
    ) -> Levels:
        """Return the levels that `affine_parameters` would give for these ranges.

        >>> from bitwright.numerics.types import UINT8
        >>> levels = Levels.over(np.array([-1.0]), np.array([4.1]), UINT8)
        >>> levels.scale.round(6), levels.bottom.round(6)
        (array([0.02]), array([-1.]))
        """
        qmin, qmax = qtype.bounds(symmetric=symmetric, reduced=reduced)
        if symmetric:
            scale = _positive(2 * np.maximum(-low, high) / (qmax - qmin))
            return cls.of(scale, np.float64(middle_of(qmin, qmax)), qmin, qmax)
        scale = _positive((high - low) / (qmax - qmin))
        zero_point = np.minimum(np.maximum(np.rint(qmin - low / scale), qmin), qmax)
        return cls.of(scale, zero_point, qmin, qmax)

    @classmethod
    def of(cls, scale: F64, zero_point: F64 | np.float64, qmin: int, qmax: int) -> Levels:
        """Return the levels of this scale and zero point."""
        return cls(scale, (qmin - zero_point) * scale, (qmax - zero_point) * scale)

    def as_column(self) -> Levels:
        """Return one-dimensional arrays of levels as columns, which broadcast over points."""
        return Levels(self.scale[:, None], self.bottom[:, None], self.top[:, None])

    def squared_error(self, values: Array) -> Array:
        """Return (x - quantized x)^2, in the values' own precision; the arrays broadcast."""
        dtype = values.dtype
        scale = self.scale.astype(dtype)
        error: Array = values / scale
        np.rint(error, out=error)
        error *= scale
        np.maximum(error, self.bottom.astype(dtype), out=error)
        np.minimum(error, self.top.astype(dtype), out=error)
        np.subtract(values, error, out=error)
        np.square(error, out=error)
        return error

    def integral(self, points: F64) -> F64:
        """Return the integral of the squared error from 0 to each point.

        Between the outermost levels the error is periodic: each step adds scale^3 / 12, and the
        fraction d of a step (-1/2..1/2 from a level) scale^3 d^3 / 3. Outside it grows cubically.
        """
        inside = np.minimum(np.maximum(points, self.bottom), self.top)
        outside = points - inside
        inside /= self.scale
        steps = np.rint(inside)
        inside -= steps
        total = inside * inside
        total *= inside
        steps *= 0.25
        total += steps
        total *= self.scale * self.scale * self.scale
        outside *= outside * outside
        total += outside
        total /= 3.0
        return total

    def absolute_integral(self, points: F64) -> F64:
        """Return the integral of the absolute error from 0 to each point.

        Each step adds scale^2 / 4, and the fraction d of a step scale^2 d |d| / 2.
        """
        inside = np.minimum(np.maximum(points, self.bottom), self.top)
        outside = points - inside
        inside /= self.scale
        steps = np.rint(inside)
        part = inside - steps
        whole: F64 = (part * np.abs(part) / 2 + steps / 4) * self.scale**2
        return whole + outside * np.abs(outside) / 2


def _positive(scale: F64) -> F64:
    return np.where(scale > 0, scale, 1.0)


class Density:
    """A distribution as intervals of constant density, and points that hold much of the mass.

    A bin's values are spread evenly over it. Taking them all at its centre would be wrong at the
    top of an 8-bit range, where bfloat16 bins are as wide as the quantization steps: every
    power-of-two scale would hit all centres and seem to be without error.

    What is not spread: zeros, and spikes like the 6 of a saturated ReLU6.
    """

    def __init__(self, edges: F64, weights: F64, points: F64, masses: F64) -> None:
        self._edges = edges
        # Summed by parts: sum of density * (integral(b) - integral(a)) is one dot product.
        self._weights = weights
        self._points = points
        self._masses = masses

    def error(self, levels: Levels, *, absolute: bool = False) -> F64:
        """Return the sum of squared, or absolute, errors for each set of levels (1-d arrays)."""
        column = levels.as_column()
        total = np.zeros(levels.scale.shape)
        if self._edges.size:
            integral = column.absolute_integral if absolute else column.integral
            total += integral(self._edges[None, :]) @ self._weights
        if self._points.size:
            squares = column.squared_error(self._points[None, :])
            total += (np.sqrt(squares) if absolute else squares) @ self._masses
        return total

    @classmethod
    def of_points(cls, values: F64, counts: F64) -> Density:
        """Return the density of values that are known exactly."""
        return cls(np.zeros(0), np.zeros(0), values, counts)

    @classmethod
    def of_bins(cls, values: F64, counts: F64) -> Density:
        """Return the density of bfloat16 bins, given their values, ascending, and counts."""
        # Far below the largest value every scale rounds to zero, or its error does not matter.
        size = np.abs(values)
        matters = size > 2.0**-24 * size.max(initial=0.0)
        values, counts = values[matters], counts[matters]
        low, high = _bin_edges(values)
        point = _spikes(low, high, counts)
        # The ends of the tails decide what clipping costs: they are kept value by value.
        tail = np.ones(counts.size, bool)
        tail[_TAIL_BINS:-_TAIL_BINS] = False
        point |= tail & (counts < 8)
        points, masses = values[point], counts[point]
        left, right = min(_TAIL_BINS, counts.size), max(counts.size - _TAIL_BINS, _TAIL_BINS)
        sides = [slice(0, left), slice(left, right), slice(right, counts.size)]
        spread = [tuple(a[side][~point[side]] for a in (low, high, counts)) for side in sides]
        spread[1] = _merge(*spread[1])
        edges, weights = _summed_by_parts(*map(np.concatenate, zip(*spread, strict=True)))
        return cls(edges, weights, points, masses)


def _spikes(low: F64, high: F64, counts: F64) -> npt.NDArray[np.bool_]:
    """Say which bins stand out so far from their neighbours that they hold a single value."""
    touching = high[:-1] >= low[1:]
    around = np.zeros_like(counts)
    around[1:] = np.where(touching, counts[:-1], 0.0)
    around[:-1] = np.maximum(around[:-1], np.where(touching, counts[1:], 0.0))
    return ((counts >= 16) & (counts > 8 * around)) | (high <= low)


def _bin_edges(values: F64) -> tuple[F64, F64]:
    """Return where the bfloat16 bins of these values begin and end, none beyond the extremes."""
    bits = values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    sign = np.sign(values)
    size = (bits & 0x7FFF).astype(np.uint32)
    centre = _from_bits(size)
    inner = (centre + _from_bits(size - 1)) / 2
    # Above the largest finite bin there is infinity; its neighbour below mirrors the step.
    outer = np.where(size < 0x7F7F, (centre + _from_bits(np.minimum(size + 1, 0x7F7F))) / 2, centre)
    low = np.where(sign > 0, inner, -outer)
    high = np.where(sign > 0, outer, -inner)
    if values.size:
        # The outermost values are exact: nothing lies beyond them.
        low[0], high[-1] = max(low[0], values[0]), min(high[-1], values[-1])
    return low, high


def _from_bits(bits: npt.NDArray[np.uint32]) -> F64:
    return (bits << np.uint32(16)).view(np.float32).astype(np.float64)


def _merge(low: F64, high: F64, counts: F64) -> tuple[F64, F64, F64]:
    """Join neighbours, never across zero, until few enough are left."""
    if counts.size <= _MAX_INTERVALS:
        return low, high, counts
    split = int(np.searchsorted(low, 0.0))
    width = -(-counts.size // _MAX_INTERVALS)
    starts = np.concatenate([np.arange(0, split, width), np.arange(split, counts.size, width)])
    last = np.append(starts[1:], counts.size) - 1
    return low[starts], high[last], np.add.reduceat(counts, starts)


def _summed_by_parts(low: F64, high: F64, counts: F64) -> tuple[F64, F64]:
    """Return edges and weights so that sum(weights * F(edges)) is the counts' mean of F'."""
    edges, weights = np.empty(2 * counts.size), np.empty(2 * counts.size)
    edges[0::2], edges[1::2] = low, high
    weights[1::2] = counts / (high - low)
    weights[0::2] = -weights[1::2]
    # Neighbours share an edge: half as many points to evaluate.
    shared = np.flatnonzero(high[:-1] == low[1:])
    weights[2 * shared + 1] += weights[2 * shared + 2]
    keep = np.ones(edges.size, bool)
    keep[2 * shared + 2] = False
    return edges[keep], weights[keep]
