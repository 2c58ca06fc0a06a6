"""The judge: errors of a quantized model's outputs, each by what it holds, and one loss of all.

judge = Judge(model)                 # the float model; without one, only names and values tell
for sample in holdout:
    judge.add(sample, float_outputs, quantized_outputs)
found = judge.finish()
found.loss, found.losses             # one number, and one for each sample, in sample order
found.outputs[0].worst               # the worst part of the worst output
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.assess.judge.kinds import Kind, OutputPart
from bitwright.assess.judge.measures import Measure, PartErrors, open_measure
from bitwright.assess.judge.output_parts import cut_output, find_heads
from bitwright.assess.judge.perplexity import NextTokens, Perplexity
from bitwright.assess.judge.sequential import Interval, mean_interval, too_few
from bitwright.support import counted, plain_fields, show_percent

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_WORST_WEIGHT = 4
"""The exponent of the power mean over parts and outputs: 1 is the mean, infinity the worst."""


@dataclass(frozen=True, slots=True)
class PartJudgement:
    """One part of an output: a channel, a run of channels, a concatenated head, or all of it."""

    kind: Kind
    reason: str
    """Why it is judged as this kind."""
    axis: int | None
    span: tuple[int, int] | None
    """First index along the axis and the one behind the last; None: the whole output."""
    figure: float
    """SQNR in dB, KL divergence in nats, or cosine, as the kind says."""
    losses: Floats = field(compare=False)
    """For each sample, from 0 to 1."""
    loud: tuple[int, ...] = ()
    """Samples too strong to be part of the figure; each is judged by itself."""

    @property
    def loss(self) -> float:
        """The mean over samples."""
        return _mean(self.losses)

    @property
    def where(self) -> str:
        """Which part it is, in words."""
        if self.span is None:
            return "all of it"
        first, last = self.span[0], self.span[1] - 1
        return f"axis {self.axis}, {first}" + (f" to {last}" if last > first else "")

    def show_figure(self) -> str:
        """Return the figure with its name."""
        if math.isnan(self.figure):
            return "values that are no numbers"
        if self.kind == "sqnr":
            return f"{self.figure:.1f} dB SQNR"
        return f"{'cosine' if self.kind == 'embedding' else 'KL'} {self.figure:.3g}"

    def describe(self) -> str:
        """Return the part as one line."""
        return f"{self.where} ({self.kind}): {self.show_figure()}, loss {self.loss:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain data."""
        return plain_fields(self, "kind", "reason", "axis", "span", "figure", "loss")


@dataclass(frozen=True, slots=True)
class OutputJudgement:
    """One output, judged part by part."""

    name: str
    parts: tuple[PartJudgement, ...]
    """The worst first."""
    losses: Floats = field(compare=False)
    """For each sample, of all parts, the worst counting most."""
    agreements: Floats | None = field(default=None, compare=False)
    """For each sample, the share of rows with the same best class; None: no classes compete."""

    @property
    def loss(self) -> float:
        """The mean over samples."""
        return _mean(self.losses)

    @property
    def worst(self) -> PartJudgement:
        """The part with the largest loss."""
        return self.parts[0]

    @property
    def interval(self) -> Interval | None:
        """Of the loss; None with too few samples."""
        return mean_interval(self.losses)

    @property
    def agreement_interval(self) -> Interval | None:
        """Of top-1 agreement."""
        return None if self.agreements is None else mean_interval(self.agreements)

    def describe(self) -> str:
        """Return the judgement as part of a line."""
        part = self.worst
        place = "" if part.span is None else f"worst in {part.where} with "
        found = f"{show_loss(self.loss, self.interval)} as {part.kind}"
        if part.span is None and part.kind == "sqnr":
            return found
        return f"{found}, {place}{part.show_figure()}"

    def to_dict(self) -> dict[str, Any]:
        """Return the output as plain data."""
        of_all = plain_fields(self, "loss", "interval", "agreement_interval", "parts")
        return {"name": self.name, **plain_fields(self.worst, "kind", "reason"), **of_all}


@dataclass(frozen=True, slots=True)
class Judgement:
    """All outputs of a quantized model on some samples, and one loss for the whole."""

    outputs: tuple[OutputJudgement, ...]
    """The worst first."""
    losses: Floats = field(compare=False)
    """For each sample in its order: from 0, the same, to 1, nothing in common."""
    samples: int
    left_out: tuple[str, ...] = ()
    """Why outputs were not judged, a sentence each."""
    perplexity: Perplexity | None = None
    """Of a decoder with a cache: on the tokens of the samples."""
    remarks: tuple[str, ...] = ()
    """What to know of samples that are unlike the others."""

    @property
    def loss(self) -> float:
        """The mean over samples: lower is better. About the root of noise over signal."""
        return _mean(self.losses)

    @property
    def power(self) -> float:
        """The mean square over samples: noise over signal, where all is judged by SQNR."""
        return _mean(self.losses**2)

    @property
    def interval(self) -> Interval | None:
        """Of the loss; None with too few samples."""
        return mean_interval(self.losses)

    @property
    def note(self) -> str | None:
        """What to know about the number of samples, where they are few."""
        return too_few(self.samples)

    @property
    def notes(self) -> list[str]:
        """Perplexity, what was not judged, which samples are unlike others, and if they are few."""
        read = [] if self.perplexity is None else [f"perplexity {self.perplexity.describe()}"]
        few = [] if self.note is None else [self.note]
        return [*read, *self.left_out, *self.remarks, *few]

    def describe(self) -> str:
        """Return the loss of all outputs as a few words."""
        return show_loss(self.loss, self.interval)

    def output(self, name: str) -> OutputJudgement | None:
        """Return one output by its name."""
        return next((output for output in self.outputs if output.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        read = {} if self.perplexity is None else {"perplexity": self.perplexity._asdict()}
        names = ("loss", "interval", "samples", "note", "outputs", "left_out")
        return plain_fields(self, *names) | read


class OutputJudge:
    """Gathers the errors of one output, sample by sample, in memory that does not grow with it."""

    def __init__(self, name: str, parts: Iterable[OutputPart]) -> None:
        self.name = name
        self._measures: list[tuple[OutputPart, Measure]] = [
            (part, open_measure(part.kind, part.axis, top1=part.top1)) for part in parts
        ]

    def add(self, expected: Array, actual: Array) -> None:
        """Add the outputs of both models for a sample; another shape has nothing in common."""
        for part, measure in self._measures:
            if expected.shape == actual.shape:
                measure.add(part.take(expected), part.take(actual))
            else:
                measure.add_lost()

    def finish(self) -> OutputJudgement:
        """Return the judgement."""
        groups = [
            [_part(part, errors) for errors in measure.finish()] for part, measure in self._measures
        ]
        # Heads count alike, however many channels each has.
        losses = combine_losses([combine_losses([p.losses for p in parts]) for parts in groups])
        parts = sorted((p for parts in groups for p in parts), key=lambda part: -part.loss)
        agreements = [m.agreement for _, m in self._measures if m.agreement is not None]
        return OutputJudgement(
            self.name, tuple(parts), losses, agreements[0] if agreements else None
        )


class Judge:
    """Judges the float outputs of a quantized model against those of the float model."""

    def __init__(self, model: ir.Model | None = None) -> None:
        """Take the float model, whose graph tells what outputs are made of."""
        self._heads = {} if model is None else find_heads(model)
        self._outputs: dict[str, OutputJudge] = {}
        self._shapes: dict[str, set[tuple[Any, ...]]] = {}
        self._samples = 0
        self._tokens = NextTokens()

    def add(
        self,
        sample: Mapping[str, Array],
        expected: Mapping[str, Array],
        actual: Mapping[str, Array],
    ) -> None:
        """Add the outputs of both models for a sample."""
        fed = tuple(array.shape for array in sample.values())
        for name, value in expected.items():
            array = np.asarray(value)
            if array.dtype.kind != "f" or name not in actual:
                continue
            if name not in self._outputs:
                parts = cut_output(name, array, sample.values(), self._heads.get(name))
                self._outputs[name] = OutputJudge(name, parts)
            self._outputs[name].add(array, np.asarray(actual[name]))
            self._shapes.setdefault(name, set()).add((fed, array.shape))
        self._samples += 1
        self._tokens.add(sample, expected, actual)

    def finish(self) -> Judgement:
        """Return the judgement over all samples."""
        found, left_out = [], []
        for name, output in self._outputs.items():
            seen = self._shapes[name]
            if len({fed for fed, _ in seen}) < len(seen):
                left_out.append(
                    f"output {name!r} is not judged: how many numbers it has depends on the sample"
                )
                continue
            found.append(output.finish())
        losses = combine_losses([output.losses for output in found])
        found.sort(key=lambda output: -output.loss)
        perplexity = self._tokens.finish()
        remarks = tuple(text for output in found for text in self._remark_loud(output))
        return Judgement(tuple(found), losses, self._samples, tuple(left_out), perplexity, remarks)

    def _remark_loud(self, output: OutputJudgement) -> Iterator[str]:
        numbers = sorted({number for part in output.parts for number in part.loud})
        if numbers:
            heads = self._heads.get(output.name)
            divider = None if heads is None else heads.divider
            why = "" if divider is None else f", where {divider} may divide by nearly zero"
            yield (
                f"output {output.name!r} is more than thirty times as large in "
                f"{counted(len(numbers), 'sample')} (such as number {numbers[0]}) as usual{why}: "
                "judged apart, so that the noise of the others counts"
            )


def combine_losses(losses: list[Floats]) -> Floats:
    """Return one loss a sample out of several: a mean in which the worst counts most."""
    if not losses:
        return np.zeros(0)
    stacked = np.stack(losses)
    combined: Floats = np.mean(stacked**_WORST_WEIGHT, axis=0) ** (1 / _WORST_WEIGHT)
    return combined


def show_loss(loss: float, interval: Interval | None) -> str:
    """Return a loss in percent, with its interval where there is one."""
    text = f"loss {show_percent(loss)} %"
    if interval is None:
        return text
    return f"{text} ({show_percent(interval.low)} to {show_percent(interval.high)} %)"


def _part(part: OutputPart, found: PartErrors) -> PartJudgement:
    start = part.span[0] if part.span is not None else 0
    span = part.span if found.span is None else (start + found.span[0], start + found.span[1])
    with np.errstate(invalid="ignore"):
        # What is lost can be lost only once: errors approach 1.
        saturated = np.where(np.isinf(found.errors), 1.0, found.errors / (1 + found.errors))
    losses = np.sqrt(saturated)
    return PartJudgement(
        part.kind, part.reason, part.axis, span, found.figure, losses, loud=found.loud
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0
