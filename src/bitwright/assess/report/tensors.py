"""A quantized tensor as the report draws it: histogram, range, share that is clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.assess.report.histograms import Histogram, pack
from bitwright.numerics.types import QTYPES

__all__ = ["MAX_CHANNELS", "TensorView", "channel_peaks", "represented_range"]

Array = npt.NDArray[Any]

MAX_CHANNELS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One quantized tensor as the report draws it.

    >>> view = TensorView(
    ...     name="x", role="activation", qtype="uint8", scale=np.array(0.5), zero_point=np.array(2),
    ...     clipped=0.25,
    ... )
    >>> view.range, view.to_dict()["scale"]
    ((-1.0, 126.5), [0.5, 0.5])
    """

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
    """Share of the values that lie outside the range."""
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
        return represented_range(self.qtype, self.scale, self.zero_point)

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


def represented_range(qtype: str, scale: Array, zero_point: Array) -> tuple[float, float] | None:
    """Return the ends of what a type can hold at its widest scale; None for types without ends.

    >>> represented_range("int8", np.array([0.5, 1.0]), np.array(0))
    (-128.0, 127.0)
    """
    kind = QTYPES.get(qtype)
    if kind is None or not kind.needs_range or not scale.size:
        return None
    scale = np.asarray(scale, np.float64)
    low, high = (scale * (end - zero_point) for end in (kind.lowest, kind.highest))
    return float(low.min()), float(high.max())


def channel_peaks(weight: Array, axis: int) -> Array | None:
    """Return the largest magnitude of each channel of a weight; None if there is no such axis.

    >>> channel_peaks(np.array([[1.0, -3.0], [2.0, 0.0]]), 0)
    array([3., 2.])
    """
    if not 0 <= axis < weight.ndim or weight.ndim < 2 or not weight.size:
        return None
    others = tuple(index for index in range(weight.ndim) if index != axis)
    peaks = np.abs(np.asarray(weight, np.float64)).max(axis=others)
    return np.where(np.isfinite(peaks), peaks, 0.0)


def _channels(peaks: Array) -> dict[str, Any]:
    """Return the channels in at most `MAX_CHANNELS` groups, each as tall as its largest one."""
    groups = min(peaks.size, MAX_CHANNELS)
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
