"""Compare what two models answer to the same samples, without knowing the task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.assess.noise import decibels

__all__ = ["OutputComparison", "compare_outputs"]

Array = npt.NDArray[Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """How far one output of the quantized model is from the float one.

    >>> OutputComparison("y", 40.0, 0.9999, 0.01, 1.0).describe()
    "output 'y': 40.0 dB SQNR, cosine 0.99990, largest error 0.01, top-1 agreement 100.0 %"
    """

    name: str
    sqnr: float
    """Signal to quantization noise, in dB; infinite where both agree to the bit."""
    cosine: float
    largest_error: float
    agreement: float | None
    """Share of rows (last axis) with the same largest element; None for scalars."""

    def describe(self) -> str:
        """Return the comparison as one line."""
        text = (
            f"output {self.name!r}: {self.sqnr:.1f} dB SQNR, cosine {self.cosine:.5f}, "
            f"largest error {self.largest_error:.3g}"
        )
        if self.agreement is not None:
            text += f", top-1 agreement {self.agreement:.1%}".replace("%", " %")
        return text


class _Sums:
    """Running sums over samples of any shape."""

    def __init__(self) -> None:
        self.signal = self.noise = self.dot = self.other = 0.0
        self.largest = 0.0
        self.rows = self.agreeing = 0

    def add(self, expected: Array, actual: Array) -> None:
        a = np.asarray(expected, np.float64)
        b = np.asarray(actual, np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not np.all(same | (np.isfinite(a) & np.isfinite(b))):
            self.noise = self.largest = math.inf
        # What is infinite on both sides, such as a masked logit, neither helps nor hurts.
        finite = np.isfinite(a) & np.isfinite(b)
        rows_a, rows_b = a, b
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        difference = a - b
        self.signal += float(np.vdot(a, a))
        self.other += float(np.vdot(b, b))
        self.dot += float(np.vdot(a, b))
        self.noise += float(np.vdot(difference, difference))
        self.largest = max(self.largest, float(np.max(np.abs(difference), initial=0.0)))
        if a.ndim and a.shape[-1] > 1 and a.size:
            agree = np.argmax(rows_a, axis=-1) == np.argmax(rows_b, axis=-1)
            self.rows += agree.size
            self.agreeing += int(np.count_nonzero(agree))

    def finish(self, name: str) -> OutputComparison:
        sqnr = decibels(self.signal, self.noise)
        norm = math.sqrt(self.signal * self.other)
        cosine = self.dot / norm if norm else float(self.signal == self.other)
        agreement = self.agreeing / self.rows if self.rows else None
        return OutputComparison(name, sqnr, cosine, self.largest, agreement)


def compare_outputs(
    expected: Run, actual: Run, samples: Iterable[Mapping[str, Array]]
) -> list[OutputComparison]:
    """Run both models on the samples and return a comparison for each float output.

    >>> import numpy as np
    >>> double = lambda feeds: {"y": 2 * feeds["x"]}
    >>> [result] = compare_outputs(double, double, [{"x": np.ones((1, 3))}])
    >>> result.sqnr, result.agreement
    (inf, 1.0)
    """
    sums: dict[str, _Sums] = {}
    for sample in samples:
        wanted, given = expected(sample), actual(sample)
        for name, value in wanted.items():
            array = np.asarray(value)
            if array.dtype.kind == "f" and name in given and given[name].shape == array.shape:
                sums.setdefault(name, _Sums()).add(array, given[name])
    return [total.finish(name) for name, total in sums.items()]
