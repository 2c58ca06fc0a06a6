"""The verdict on a quantized model: a level and a sentence."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from bitwright.assess.outputs import OutputComparison
from bitwright.assess.report.subject import ReportSubject

__all__ = ["Level", "Verdict", "judge", "level_of"]

Level = Literal["good", "fair", "poor", "unknown"]

# Losses up to which answers are as good as float's, and up to which they are usable: an error of
# 3 % of the numbers (30 dB) or of 18 % (15 dB); of 1 % or 9 % of what class scores and embeddings
# tell samples apart by.
_LIMITS = {True: (10**-1.5, 10**-0.75), False: (0.1, 0.3)}
_GOOD_AGREEMENT, _FAIR_AGREEMENT = 0.99, 0.95
# The same answers at 20 dB are good answers; noise that turns none of them is not felt.
_AGREEING_LIMITS = {True: 0.1, False: 0.3}

_OPENINGS: dict[Level, str] = {
    "good": "Good: {quantized} answers as {float} does",
    "fair": "Usable: {quantized} answers much as {float} does",
    "poor": "Poor: {quantized} often answers something else than {float}",
    "unknown": "Not measured: {quantized} was not run beside {float}",
}


class Verdict(NamedTuple):
    """How good a model is, and the sentence that says so."""

    level: Level
    sentence: str


def judge(subject: ReportSubject) -> Verdict:
    """Return the verdict on a quantized model, by the worst of its outputs."""
    if not subject.outputs:
        opening = _OPENINGS["unknown"].format(quantized="the quantized model", float="float")
        return Verdict("unknown", f"{opening}; it is {_size(subject)}.")
    worst = max(subject.outputs, key=_loss)
    level = min((level_of(output) for output in subject.outputs), key=_RANK.index)
    opening = _OPENINGS[level].format(quantized="the quantized model", float="the float one")
    measures = [_signal(worst.sqnr), *_part(worst)]
    agreements = [o.agreement for o in subject.outputs if o.agreement is not None]
    if agreements:
        share = f"{min(agreements):.1%}".replace("%", " %")
        measures.append(f"the same top answer in {share} of cases")
    gains = [_size(subject)]
    if subject.latency is not None:
        gains.append(_times(subject.latency.speedup, "as fast", "faster", "slower"))
    kernels = "" if subject.coverage is None else f", with {subject.coverage.describe()}"
    sentence = f"{opening} ({', '.join(measures)}), and is {' and '.join(gains)}{kernels}."
    sensitive = [*subject.most_sensitive(), *subject.worst]
    if level != "good" and sensitive:
        name = subject.nodes[sensitive[0]].measured.name
        sentence += f" The most sensitive node is {name}."
    return Verdict(level, sentence)


_RANK: list[Level] = ["poor", "fair", "good", "unknown"]


def level_of(output: OutputComparison) -> Level:
    """Return how good one output is: by the loss of its worst part, or by what it answers.

    >>> level_of(OutputComparison("y", 22.0, 0.99, 0.1, 1.0))
    'good'
    >>> level_of(OutputComparison("y", 22.0, 0.99, 0.1, None))
    'fair'
    """
    by_noise = output.judged is None or output.judged.worst.kind == "sqnr"
    (good, fair), loss = _LIMITS[by_noise], _loss(output)
    agreement = output.agreement if output.agreement is not None else 0.0
    if loss <= good or (agreement >= _GOOD_AGREEMENT and loss <= _AGREEING_LIMITS[by_noise]):
        return "good"
    if loss <= fair or agreement >= _FAIR_AGREEMENT:
        return "fair"
    return "poor"


def _loss(output: OutputComparison) -> float:
    """Return the loss of the worst part; of an output that is not judged, that of its noise."""
    if output.judged is not None:
        return output.judged.worst.loss
    return float(10 ** (-output.sqnr / 20))


def _part(output: OutputComparison) -> list[str]:
    """Return the worst part in words, where it is not the whole or not judged by its noise."""
    part = None if output.judged is None else output.judged.worst
    if part is None or (part.span is None and part.kind == "sqnr"):
        return []
    place = "" if part.span is None else f" in {part.where}"
    return [f"{part.show_figure()}{place}"]


def _signal(sqnr: float) -> str:
    if math.isinf(sqnr):
        return "no difference at all" if sqnr > 0 else "nothing but noise"
    return f"{sqnr:.1f} dB signal to noise"


def _size(subject: ReportSubject) -> str:
    ratio = max(subject.float_bytes, 1) / max(subject.quantized_bytes, 1)
    return _times(ratio, "as large", "smaller", "larger")


def _times(ratio: float, same: str, more: str, less: str) -> str:
    if 0.95 <= ratio <= 1.05:
        return same
    return f"{ratio:.1f} times {more}" if ratio > 1 else f"{1 / ratio:.1f} times {less}"
