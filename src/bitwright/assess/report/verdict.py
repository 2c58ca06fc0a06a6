"""The verdict on a quantized model: a level and a sentence."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from bitwright.assess.outputs import OutputComparison
from bitwright.assess.report.subject import ReportSubject

__all__ = ["Level", "Verdict", "judge", "level_of"]

Level = Literal["good", "fair", "poor", "unknown"]

# Signal to noise, in dB, from which answers are as good as float's, and from which they are usable:
# at 30 dB the error is 3 % of the answer, at 15 dB it is 18 %.
_GOOD_SQNR, _FAIR_SQNR = 30.0, 15.0
_GOOD_AGREEMENT, _FAIR_AGREEMENT = 0.99, 0.95

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
    worst = min(subject.outputs, key=lambda output: output.sqnr)
    level = min((level_of(output) for output in subject.outputs), key=_RANK.index)
    opening = _OPENINGS[level].format(quantized="the quantized model", float="the float one")
    measures = [_signal(worst.sqnr)]
    agreements = [o.agreement for o in subject.outputs if o.agreement is not None]
    if agreements:
        share = f"{min(agreements):.1%}".replace("%", " %")
        measures.append(f"the same top answer in {share} of cases")
    gains = [_size(subject)]
    if subject.latency is not None:
        gains.append(_times(subject.latency.speedup, "as fast", "faster", "slower"))
    sentence = f"{opening} ({', '.join(measures)}), and is {' and '.join(gains)}."
    sensitive = [*subject.most_sensitive(), *subject.worst]
    if level != "good" and sensitive:
        name = subject.nodes[sensitive[0]].measured.name
        sentence += f" The most sensitive node is {name}."
    return Verdict(level, sentence)


_RANK: list[Level] = ["poor", "fair", "good", "unknown"]


def level_of(output: OutputComparison) -> Level:
    """Return how good one output is: by its signal to noise, or by what it answers.

    >>> level_of(OutputComparison("y", 22.0, 0.99, 0.1, 1.0))
    'good'
    >>> level_of(OutputComparison("y", 22.0, 0.99, 0.1, None))
    'fair'
    """
    # The same answers at 20 dB are good answers; noise that turns none of them is not felt.
    agreement = output.agreement if output.agreement is not None else 0.0
    if output.sqnr >= _GOOD_SQNR or (agreement >= _GOOD_AGREEMENT and output.sqnr >= 20):
        return "good"
    if output.sqnr >= _FAIR_SQNR or agreement >= _FAIR_AGREEMENT:
        return "fair"
    return "poor"


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
