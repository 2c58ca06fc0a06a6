"""Errors of the outputs of two models on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.assess.judge.judgement import Judge, Judgement, OutputJudgement
from bitwright.assess.rendering import show_decibels
from bitwright.assess.sums import ErrorSums
from bitwright.support import Array, Section

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
    judged: OutputJudgement | None = None
    """Its loss, by what it holds and by parts; None where it cannot be judged."""

    def describe(self) -> str:
        """Return the comparison as one line."""
        text = (
            f"output {self.name!r}: {self.sqnr:.1f} dB SQNR, cosine {self.cosine:.5f}, "
            f"largest error {self.largest_error:.3g}"
        )
        if self.agreement is not None:
            text += f", top-1 agreement {self.agreement:.1%}".replace("%", " %")
        return text if self.judged is None else f"{text}; {self.judged.describe()}"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"judged": None if self.judged is None else self.judged.to_dict()}


class TotalError(NamedTuple):
    """The error of all outputs as two numbers: to show, and to choose by."""

    noise: float
    """Noise over signal, each output counting alike."""
    loss: float
    """What the judge sees, squared: noise over signal, where that is its only measure."""
    samples: tuple[float, ...] = ()
    """The same for each sample, where it is known."""


class ComparedOutputs(NamedTuple):
    """All outputs of two models on the same samples, one by one and judged as a whole."""

    outputs: list[OutputComparison]
    judgement: Judgement

    @property
    def total(self) -> TotalError:
        """The error of all outputs; an output that is all zero in float has no noise ratio."""
        noises = [10 ** (-output.sqnr / 10) for output in self.outputs if output.sqnr > -math.inf]
        noise = sum(noises) / len(noises) if noises else 0.0
        judged = self.judgement
        return TotalError(noise, judged.power, tuple((judged.losses**2).tolist()))


class OutputErrors:
    """Gathers the errors of all outputs, sample by sample."""

    def __init__(self, model: ir.Model | None = None) -> None:
        self._sums: dict[str, ErrorSums] = {}
        self._judge = Judge(model)

    def add(
        self,
        sample: Mapping[str, Array],
        expected: Mapping[str, Array],
        actual: Mapping[str, Array],
    ) -> None:
        """Add what both models gave for a sample."""
        for name, value in expected.items():
            array = np.asarray(value)
            if array.dtype.kind == "f" and name in actual and actual[name].shape == array.shape:
                self._sums.setdefault(name, ErrorSums()).add(array, actual[name])
        self._judge.add(sample, expected, actual)

    def finish(self) -> ComparedOutputs:
        """Return the comparison of each float output that has any numbers."""
        judgement = self._judge.finish()
        found = [
            _compare(name, sums, judgement.output(name))
            for name, sums in self._sums.items()
            if sums.count
        ]
        return ComparedOutputs(found, judgement)


def _compare(name: str, sums: ErrorSums, judged: OutputJudgement | None) -> OutputComparison:
    agreements = None if judged is None else judged.agreements
    agreement = None if agreements is None else float(agreements.mean())
    return OutputComparison(name, sums.sqnr, sums.cosine, sums.largest, agreement, judged)


def compare_outputs(
    expected: Run,
    actual: Run,
    samples: Iterable[Mapping[str, Array]],
    *,
    model: ir.Model | None = None,
) -> ComparedOutputs:
    """Run both models on the samples and compare each float output; `model` is the float one."""
    errors = OutputErrors(model)
    for sample in samples:
        errors.add(sample, expected(sample), actual(sample))
    return errors.finish()


def output_section(title: str, outputs: Sequence[OutputComparison]) -> Section:
    """Return the section of how far outputs are from float."""
    rows = [
        (
            output.name,
            show_decibels(output.sqnr),
            f"{output.cosine:.5f}",
            f"{output.largest_error:.3g}",
            "" if output.agreement is None else f"{100 * output.agreement:.1f}",
        )
        for output in outputs
    ]
    columns = ("output", "SQNR, dB", "cosine", "largest error", "same top answer, %")
    return title, columns, rows
