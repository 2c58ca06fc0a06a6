"""Errors of the outputs of two models on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.assess.judge.kinds import class_axis
from bitwright.assess.sums import ErrorSums

__all__ = ["OutputComparison", "OutputSums", "compare_outputs"]

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
    """Share of answers with the same best class; None where the output is no scores of classes
    (see `judge.kinds.class_axis`)."""

    def describe(self) -> str:
        """Return the comparison as one line."""
        text = (
            f"output {self.name!r}: {self.sqnr:.1f} dB SQNR, cosine {self.cosine:.5f}, "
            f"largest error {self.largest_error:.3g}"
        )
        if self.agreement is not None:
            text += f", top-1 agreement {self.agreement:.1%}".replace("%", " %")
        return text


class OutputSums:
    """Running sums over one output's samples, of any shape.

    >>> sums = OutputSums()
    >>> sums.add(np.array([[1.0, 3.0]]), np.array([[2.0, 3.0]]), axis=1)
    >>> sums.finish("y").agreement
    1.0
    """

    def __init__(self) -> None:
        self._errors = ErrorSums()
        self._rows = self._agreeing = 0

    @property
    def count(self) -> int:
        """How many numbers were seen."""
        return self._errors.count

    def add(self, expected: Array, actual: Array, axis: int | None) -> None:
        """Add what both models gave for one sample; classes lie along `axis`, if there are any."""
        self._errors.add(expected, actual)
        if axis is not None and expected.size:
            agree = np.argmax(expected, axis=axis) == np.argmax(actual, axis=axis)
            self._rows += agree.size
            self._agreeing += int(np.count_nonzero(agree))

    def finish(self, name: str) -> OutputComparison:
        """Return the comparison."""
        errors = self._errors
        agreement = self._agreeing / self._rows if self._rows else None
        return OutputComparison(name, errors.sqnr, errors.cosine, errors.largest, agreement)


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
    sums: dict[str, OutputSums] = {}
    for sample in samples:
        wanted, given = expected(sample), actual(sample)
        for name, value in wanted.items():
            array = np.asarray(value)
            if array.dtype.kind == "f" and name in given and given[name].shape == array.shape:
                axis = class_axis(name, array.shape, sample.values())
                sums.setdefault(name, OutputSums()).add(array, given[name], axis)
    return [total.finish(name) for name, total in sums.items()]
