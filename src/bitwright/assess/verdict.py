"""The verdict on a quantized model by its outputs: a level and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bitwright.assess.coverage import Coverage
from bitwright.assess.outputs import OutputComparison

__all__ = ["UNJUDGED", "Level", "Verdict", "judge_outputs", "level_of"]

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


UNJUDGED = Verdict(
    "unknown", "Not judged: ranges and figures are of random data, and say only that it runs."
)
"""Of a model that was calibrated on random data."""


def judge_outputs(
    outputs: Sequence[OutputComparison],
    float_bytes: int,
    quantized_bytes: int,
    *,
    speedup: float | None = None,
    coverage: Coverage | None = None,
) -> Verdict:
    """Return the verdict on a quantized model, by the worst of its outputs.

    >>> judge_outputs([OutputComparison("y", 40.0, 0.99, 0.1, None)], 400, 100).sentence
    'Good: the quantized model answers as the float one does (40.0 dB signal to noise), and is \
4.0 times smaller.'
    """
    size = _times(max(float_bytes, 1) / max(quantized_bytes, 1), "as large", "smaller", "larger")
    if not outputs:
        opening = _OPENINGS["unknown"].format(quantized="the quantized model", float="float")
        return Verdict("unknown", f"{opening}; it is {size}.")
    worst = max(outputs, key=_loss)
    level = min((level_of(output) for output in outputs), key=_RANK.index)
    opening = _OPENINGS[level].format(quantized="the quantized model", float="the float one")
    measures = [_signal(worst.sqnr), *_part(worst)]
    agreements = [o.agreement for o in outputs if o.agreement is not None]
    if agreements:
        share = f"{min(agreements):.1%}".replace("%", " %")
        measures.append(f"the same top answer in {share} of cases")
    gains = [size]
    if speedup is not None:
        gains.append(_times(speedup, "as fast", "faster", "slower"))
    kernels = "" if coverage is None else f", with {coverage.describe()} by ONNX Runtime on a CPU"
    return Verdict(
        level, f"{opening} ({', '.join(measures)}), and is {' and '.join(gains)}{kernels}."
    )


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


def _times(ratio: float, same: str, more: str, less: str) -> str:
    if 0.95 <= ratio <= 1.05:
        return same
    return f"{ratio:.1f} times {more}" if ratio > 1 else f"{1 / ratio:.1f} times {less}"
