"""Quantized tensors as the report draws them, from encodings, sketches and float weights.

Their histograms have few bins, two letters each: a report holds thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bitwright.assess.report.encodings import Encoding
from bitwright.graph.packed_weights import PackedWeight
from bitwright.numerics import QTYPES, QuantizedBlocks, along_axis
from bitwright.support.array_types import Array

MAX_BINS = 96
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LEVELS = 64 * 64 - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts in bins of equal width over [low, high], all values included."""

    low: float
    high: float
    counts: Array
    finite: int
    """How many values there were."""

    @classmethod
    def of_array(cls, array: Array, *, bins: int = MAX_BINS) -> Histogram | None:
        """Return the histogram of an array's finite values, None if it has none."""
        values = np.asarray(array, np.float64).reshape(-1)
        values = values[np.isfinite(values)]
        if not values.size:
            return None
        low, high = float(values.min()), float(values.max())
        counts = np.histogram(values, bins, _widened(low, high))[0]
        return cls(low, high, counts.astype(np.float64), values.size)

    @classmethod
    def of_bfloat16(
        cls, values: Array, counts: Array, low: float, high: float, *, bins: int = MAX_BINS
    ) -> Histogram | None:
        """Return the histogram of counts at bfloat16 values, as a `TensorSketch` has them.

        Each count is spread over the values that round to its bfloat16: near the ends one bin
        holds one such value and the next one two, and a comb of them would show.
        """
        if not counts.size or not low <= high:
            return None
        edges = np.linspace(*_widened(low, high), bins + 1)
        below, above = _cells(np.asarray(values, np.float64), low, high)
        total = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
        # The cumulative count rises over each cell and is level between them.
        places = np.stack([below, above], axis=1).reshape(-1)
        heights = np.stack([total[:-1], total[1:]], axis=1).reshape(-1)
        at_edges = np.interp(edges, places, heights)
        at_edges[0], at_edges[-1] = 0.0, total[-1]
        return cls(low, high, np.maximum(np.diff(at_edges), 0.0), int(total[-1]))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, packed."""
        peak, text = pack(self.counts)
        return {
            "low": self.low,
            "high": self.high,
            "values": self.finite,
            "peak": peak,
            "bins": text,
        }


def pack(values: Array) -> tuple[float, str]:
    """Return the largest of these non-negative numbers, and all of them as two letters each.

    They are stored by the logarithm of 1 + value, so that the rarest bin shows beside the fullest;
    what is not zero stays so.
    """
    peak = float(np.max(values, initial=0.0))
    if peak <= 0 or not math.isfinite(peak):
        return 0.0, "AA" * values.size
    levels = np.ceil(np.log1p(values) / math.log1p(peak) * _LEVELS).astype(int).clip(0, _LEVELS)
    table = np.frombuffer(_LETTERS.encode(), np.uint8)
    return peak, table[np.stack([levels // 64, levels % 64], axis=1)].tobytes().decode()


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range that bins have a width in, also where all values are one."""
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _cells(values: Array, low: float, high: float) -> tuple[Array, Array]:
    """Return where the values that round to each of these bfloat16 begin and end."""
    mantissa, exponent = np.frexp(np.abs(values))
    # All zeros are at zero: a sliver, which belongs to the bin above an edge there.
    outward = np.where(values == 0, np.finfo(np.float64).tiny, np.ldexp(1.0, exponent - 9))
    inward = np.where(mantissa == 0.5, outward / 2, outward)  # below a power of two they are denser
    below = np.where(values > 0, values - inward, np.where(values < 0, values - outward, 0.0))
    above = np.where(values < 0, values + inward, values + outward)
    return np.clip(below, low, high), np.clip(above, low, high)


_MAX_CHANNELS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One quantized tensor as the report draws it."""

    name: str
    role: str
    """"activation", "weight" or "bias"."""
    qtype: str
    scale: Array
    zero_point: Array
    method: str | None = None
    """Where the scale comes from, if a plan says it."""
    histogram: Histogram | None = None
    """Of the float values."""
    clipped: float | None = None
    """Share of the values that lie outside the range, and whose size counts for a reader."""
    peaks: Array | None = None
    """The largest magnitude of each output channel of a weight."""
    limits: tuple[float, float] | None = None
    """The ends of what can be represented, where type and scales alone do not say it."""
    scales: int | None = None
    """How many scales there are, where not all of them are here."""

    @property
    def range(self) -> tuple[float, float] | None:
        """The ends of what can be represented, of the widest channel."""
        if self.limits is not None:
            return self.limits
        return _represented_range(self.qtype, self.scale, self.zero_point)

    @property
    def channel_ratio(self) -> float:
        """How many times larger the largest channel of a weight is than the middle one."""
        if self.peaks is None or self.peaks.size < 2:
            return 1.0
        middle = float(np.median(self.peaks))
        return float(self.peaks.max()) / middle if middle > 0 else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        limits = self.range
        data: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "type": self.qtype,
            "scale": _ends(self.scale),
            "scales": int(self.scale.size) if self.scales is None else self.scales,
            "zero": _ends(self.zero_point),
            "range": None if limits is None else [_short(limits[0]), _short(limits[1])],
            "method": self.method,
            "clipped": None if self.clipped is None else _short(self.clipped),
        }
        if self.histogram is not None:
            data["histogram"] = self.histogram.to_dict()
        if self.peaks is not None and self.peaks.size > 1:
            data["channels"] = _channels(self.peaks)
        return data


def _represented_range(qtype: str, scale: Array, zero_point: Array) -> tuple[float, float] | None:
    """Return the ends of what a type can hold at its widest scale; None for types without ends."""
    kind = QTYPES.get(qtype)
    if kind is None or not kind.needs_range or not scale.size:
        return None
    scale = np.asarray(scale, np.float64)
    low, high = (scale * (end - zero_point) for end in (kind.lowest, kind.highest))
    return float(low.min()), float(high.max())


def channel_peaks(weight: Array, axis: int) -> Array | None:
    """Return the largest magnitude of each channel of a weight; None if there is no such axis."""
    if not 0 <= axis < weight.ndim or weight.ndim < 2 or not weight.size:
        return None
    others = tuple(index for index in range(weight.ndim) if index != axis)
    peaks = np.abs(np.asarray(weight, np.float64)).max(axis=others)
    return np.where(np.isfinite(peaks), peaks, 0.0)


def _channels(peaks: Array) -> dict[str, Any]:
    """Return the channels in at most `_MAX_CHANNELS` groups, each as tall as its largest one."""
    groups = min(peaks.size, _MAX_CHANNELS)
    largest = np.maximum.reduceat(peaks, np.arange(groups) * peaks.size // groups)
    smallest = float(peaks[peaks > 0].min(initial=math.inf))
    # Packed in units of the smallest, so that the logarithm of `pack` spans them all.
    unit = smallest if math.isfinite(smallest) else 1.0
    peak, text = pack(largest / unit)
    return {
        "count": int(peaks.size),
        "unit": _short(unit),
        "peak": _short(peak),
        "peaks": text,
        "largest": int(peaks.argmax()),
        "middle": _short(np.median(peaks)),
    }


def _ends(values: Array) -> list[float] | None:
    """Return the smallest and the largest; None for formats that have none."""
    return [_short(values.min()), _short(values.max())] if values.size else None


def _short(value: Any) -> float:
    """Return a number with six digits: more of them only fill the file."""
    return float(f"{float(value):.6g}")


@dataclass(slots=True)
class Views:
    """Makes the view of each tensor once, however many nodes it belongs to."""

    sketches: Mapping[str, Any]
    """What was observed of activations, each a `TensorSketch`."""
    weight: Callable[[str], Array | None]
    methods: Mapping[str, str | None]
    saturation: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Beyond what no reader tells values apart."""
    made: dict[str, TensorView] = field(default_factory=dict, init=False)
    _keys: dict[tuple[str, str, bytes, bytes], str] = field(default_factory=dict, init=False)

    def keys_of(self, encodings: Iterable[Encoding]) -> list[tuple[str, str]]:
        """Return (what it is to the node, key of its view) for the tensors of a node."""
        found: dict[tuple[str, str], None] = {}
        for one in encodings:
            if one.label != "bias":  # a bias is stored in int32, as good as float
                found[one.label, self._key_of(one)] = None
        return list(found)

    def _key_of(self, one: Encoding) -> str:
        stored = one.tensor, one.qtype, one.scale.tobytes(), one.zero_point.tobytes()
        if stored not in self._keys:
            # One tensor can be stored in two ways, for two readers.
            key = one.tensor
            while key in self.made:
                key += "'"
            self._keys[stored] = key
            self.made[key] = self._view(one)
        return self._keys[stored]

    def _view(self, one: Encoding) -> TensorView:
        common: dict[str, Any] = {
            "name": one.tensor,
            "qtype": one.qtype,
            "scale": one.scale,
            "zero_point": one.zero_point,
            "method": self.methods.get(one.tensor),
        }
        if one.packed is not None:
            return self._blocked(one, one.packed, common)
        if one.stored is None:
            histogram, clipped = self._look_at_sketch(one)
            return TensorView(role="activation", histogram=histogram, clipped=clipped, **common)
        array = self.weight(one.tensor)
        if array is None or array.shape != one.stored.shape:
            # Folded or renamed: what is stored is all there is to draw, and hides what was cut off.
            array, clipped = one.stored, None
        else:
            clipped = _share_outside(array, one)
        # Output channels come first in a Conv's weight, and last in that of a product.
        axis = one.axis if one.axis is not None else (0 if array.ndim > 2 else array.ndim - 1)
        return TensorView(
            role=one.label,
            histogram=Histogram.of_array(array),
            clipped=clipped,
            peaks=channel_peaks(array, axis),
            **common,
        )

    def _blocked(
        self, one: Encoding, packed: PackedWeight, common: Mapping[str, Any]
    ) -> TensorView:
        """Return the view of a weight in blocks; it is unpacked only as long as it is looked at."""
        blocks = packed.unpack()
        stored = blocks.dequantize(np.float32)
        array = self.weight(one.tensor)
        float_weight = None if array is None else (array.T if one.transposed else array)
        if float_weight is None or float_weight.shape != stored.shape:
            float_weight, clipped = stored, None
        else:
            clipped = _share_outside_blocks(float_weight, blocks)
        zeros = _zeros(blocks)
        ends = [blocks.scales * (end - zeros) for end in (0.0, float(blocks.format.highest))]
        return TensorView(
            role="weight",
            histogram=Histogram.of_array(float_weight),
            clipped=clipped,
            peaks=channel_peaks(float_weight, 1),
            limits=(float(np.minimum(*ends).min()), float(np.maximum(*ends).max())),
            scales=int(blocks.scales.size),
            **{**common, "zero_point": np.array([zeros.min(), zeros.max()])},
        )

    def _look_at_sketch(self, one: Encoding) -> tuple[Histogram | None, float | None]:
        sketch = self.sketches.get(one.tensor)
        if sketch is None:
            return None, None
        values, counts = sketch.values(), sketch.counts()
        histogram = Histogram.of_bfloat16(values, counts, sketch.low, sketch.high)
        limits = _represented_range(one.qtype, one.scale, one.zero_point)
        if limits is None or not counts.size:
            return histogram, None
        # What lies within half a step of an end is rounded to it, not cut off; nor is what only
        # its bfloat16 puts beyond.
        half = 0.5 * float(one.scale.max())
        slack = half + np.abs(values) * 2.0**-8
        # Nor is what lies where every reader saturates, as below -3 of a hard-swish.
        points = self.saturation.get(one.tensor, (-math.inf, math.inf))
        low = -math.inf if limits[0] - half <= points[0] else limits[0]
        high = math.inf if limits[1] + half >= points[1] else limits[1]
        outside = (values < low - slack) | (values > high + slack)
        return histogram, float(counts[outside].sum() / counts.sum())


def _share_outside(array: Array, one: Encoding) -> float | None:
    """Return how much of a weight lies outside what its own channel's scale can represent."""
    kind = QTYPES.get(one.qtype)
    if kind is None or not kind.is_integer or (one.scale.size > 1 and one.axis is None):
        return None
    scale, zero = (np.asarray(each, np.float64) for each in (one.scale, one.zero_point))
    scale, zero = (along_axis(each, one.axis, array.ndim) for each in (scale, zero))
    codes = np.asarray(array, np.float64) / scale + zero
    return float(np.mean((codes < kind.lowest - 0.5) | (codes > kind.highest + 0.5)))


def _share_outside_blocks(array: Array, blocks: QuantizedBlocks) -> float:
    """Return how much of a weight lies outside what the scale of its own block can represent."""
    scales, zeros = (
        blocks.format.per_weight(each.astype(np.float32), blocks.shape[0])
        for each in (blocks.scales, np.broadcast_to(_zeros(blocks), blocks.scales.shape))
    )
    codes = np.divide(array, scales, out=np.zeros(array.shape, np.float32), where=scales != 0)
    codes += zeros
    return float(np.mean((codes < -0.5) | (codes > blocks.format.highest + 0.5)))


def _zeros(blocks: QuantizedBlocks) -> Array:
    middle = np.asarray(blocks.format.middle, np.float32)
    return middle if blocks.zero_points is None else blocks.zero_points.astype(np.float32)
