"""Errors of the outputs of two models on the same samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bitwright.assess.sums import ErrorSums

__all__ = ["OutputComparison", "OutputSums", "class_axis", "compare_outputs"]

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
    (see `class_axis`)."""

    def describe(self) -> str:
        """Return the comparison as one line."""
        text = (
            f"output {self.name!r}: {self.sqnr:.1f} dB SQNR, cosine {self.cosine:.5f}, "
            f"largest error {self.largest_error:.3g}"
        )
        if self.agreement is not None:
            text += f", top-1 agreement {self.agreement:.1%}".replace("%", " %")
        return text


_SCORES = re.compile(r"logit|score|prob|softmax|class|\bcls", re.IGNORECASE)
_NO_SCORES = re.compile(
    r"box|embed|hidden|state|feature|pool|present|past|cache|anchor|offset|depth|flow|landmark",
    re.IGNORECASE,
)


def class_axis(name: str, shape: Sequence[int], inputs: Iterable[Array]) -> int | None:
    """Return the axis of an output along which classes compete, or None where none do.

    An argmax over boxes, anchors, pixels, time or features says nothing, and quantization changes
    it at random. So it must be plain that the axis holds classes:

    * a name that tells of something else (boxes, hidden states, a cache, ...): none;
    * [batch, classes]: the second, as in every classifier;
    * [batch, time, classes]: the last, where the name tells of scores, or where tokens, integers of
      [batch, time], come in: the model answers for each. Else it may as well be boxes by anchors;
    * [batch, classes, height, width]: the second, where the name tells of scores, or where an image
      of this height and width comes in and there are more classes than a picture has channels.
      Else it may be another picture, or features;
    * anything else: none.

    >>> class_axis("logits", (1, 1000), []), class_axis("output0", (1, 84, 8400), [])
    (1, None)
    """
    if _NO_SCORES.search(name):
        return None
    axis, says_so = {2: 1, 3: 2, 4: 1}.get(len(shape)), _SCORES.search(name) is not None
    if axis is None or shape[axis] < 2:
        return None
    if len(shape) == 3 and not says_so:
        tokens = (array for array in inputs if array.dtype.kind in "iu")
        return axis if any(array.shape == tuple(shape[:2]) for array in tokens) else None
    if len(shape) == 4 and not says_so:
        sizes = {tuple(array.shape[2:]) for array in inputs if array.ndim == 4}
        return axis if tuple(shape[2:]) in sizes and shape[1] > 4 else None
    return axis


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
