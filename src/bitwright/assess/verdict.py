"""The verdict on a quantized model: a level, and a sentence on accuracy, size and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from bitwright.assess.clock import Clock, advise_on_time
from bitwright.assess.outputs import OutputComparison
from bitwright.plan import QuantPlan
from bitwright.support.wording import counted

Level = Literal["good", "fair", "poor", "slow", "float", "unknown"]

# Losses up to which answers are as good as float's, and up to which they are usable: an error of
# 3 % of the numbers (30 dB) or of 18 % (15 dB); of 1 % or 9 % of what class scores and embeddings
# tell samples apart by.
_LIMITS = {True: (10**-1.5, 10**-0.75), False: (0.1, 0.3)}
_GOOD_AGREEMENT, _FAIR_AGREEMENT = 0.99, 0.95
_LEAST_AGREEMENT = 0.9
"""Below this share of the same answers no model is good, however small the noise is."""
# The same answers at 20 dB are good answers; noise that turns none of them is not felt.
_AGREEING_LIMITS = {True: 0.1, False: 0.3}

MIN_SAMPLES = 4
"""Below this number the verdict says first how few samples it rests on."""

_OPENINGS = {"good": "Good", "fair": "Usable", "poor": "Poor"}
_ANSWERS = {
    "good": "answers as float does",
    "fair": "answers much as float does",
    "poor": "often answers something else than float",
}


class Verdict(NamedTuple):
    """How good a model is, and the sentence that says so."""

    level: Level
    sentence: str


_SHIP: dict[Level, str] = {
    "good": "yes, its answers and its size are good",
    "fair": "after a look at the worst nodes",
    "poor": "no, its answers are not float's",
    "slow": "not for its speed: float is faster",
    "float": "no need: it is the prepared float model",
    "unknown": "not known: its answers were not measured beside float's on real data",
}


def may_ship(level: Level, samples: int = 0, target: Mapping[str, Any] | None = None) -> str:
    """Return whether a model may be shipped, by its verdict and what its target says of it.

    >>> may_ship("good", samples=2)
    'not known: 2 samples alone were measured'
    """
    if target is not None and target["level"] == "poor":
        return f"no, {target['name']} does not run it as it is"
    if level == "good" and 0 < samples < MIN_SAMPLES:
        verb = "was" if samples == 1 else "were"
        return f"not known: {counted(samples, 'sample')} alone {verb} measured"
    return _SHIP[level]


def verdict_lines(ship: str, time: Clock | str, next_step: str | None) -> list[str]:
    """Return whether a model may be shipped, whether it is faster, and what to do, each in a line.

    `time` is why it was not timed, where it was not. There is no line of a next step of None.

    >>> verdict_lines("yes", "it was not asked for", "nothing")[1]
    'Time: not measured: it was not asked for'
    """
    found = f"not measured: {time}"
    if not isinstance(time, str):
        found = time.in_words_and_figures()
    lines = [f"Ship it: {ship}", f"Time: {found}"]
    return lines if next_step is None else [*lines, f"Next: {next_step}"]


def stays_float(plan: QuantPlan) -> bool:
    """Whether a plan quantizes nothing of the nodes that it names."""
    return bool(plan.nodes) and not any(node.quantized for node in plan.nodes.values())


UNJUDGED = Verdict(
    "unknown", "Not judged: ranges and figures are of random data, and say only that it runs."
)
"""Of a model that was calibrated on random data."""
LEFT_FLOAT = Verdict(
    "float",
    "Left float: no node is quantized, so that answers, size and time are those of the prepared "
    "float model.",
)
"""Of a model that wholly stayed float."""


def judge_model(
    plan: QuantPlan | None,
    outputs: Sequence[OutputComparison],
    sizes: tuple[int, int],
    clock: Clock | None,
    purpose: str,
    samples: int,
) -> Verdict:
    """Return the verdict on a model with its plan, if known; `sizes` are float's and its own."""
    if plan is not None and stays_float(plan):
        return LEFT_FLOAT
    found = judge_outputs(outputs, *sizes, clock=clock, purpose=purpose, samples=samples)
    random = plan is not None and plan.random_data
    return UNJUDGED if random and found.level != "unknown" else found


def judge_outputs(
    outputs: Sequence[OutputComparison],
    float_bytes: int,
    quantized_bytes: int,
    *,
    clock: Clock | None = None,
    purpose: str = "size",
    samples: int = 0,
) -> Verdict:
    """Return the verdict on a quantized model, by the worst of its outputs, its size and its time.

    One that is slower than the prepared float model is never good: the sentence says what to do,
    by the purpose that it was made for. Nor is one that is larger and not known to be faster. What
    rests on few `samples` says so first; none: it is not known how many there were.
    """
    size = _times(max(float_bytes, 1) / max(quantized_bytes, 1))
    gains = [size, *([] if clock is None else [clock.in_words()])]
    slow = clock is not None and clock.is_slower
    advice = f"; {advise_on_time(purpose)}" if slow else ""
    if not outputs:
        level: Level = "slow" if slow else "unknown"
        why = "no output is of the shape that it has in float"
        why = why if samples else "not run beside float"
        opening = f"{'Slower' if slow else 'Not measured'}: {why}"
        return Verdict(level, f"{opening}, {_joined(gains, slow)}{advice}.")
    accuracy = accuracy_of(outputs)
    level = "slow" if slow and accuracy != "poor" else accuracy
    opening = "Slower" if level == "slow" else _OPENINGS[accuracy]
    is_faster = clock is not None and clock.is_faster
    if level == "good" and size.endswith("larger") and not is_faster:
        level, opening = "fair", "Larger"
    if 0 < samples < MIN_SAMPLES:
        opening = f"From {counted(samples, 'sample')} alone: {opening}"
    worst = max(outputs, key=_loss)
    part = None if worst.judged is None else worst.judged.worst
    signal = part.figure if part is not None and part.loud else worst.sqnr
    measures = ", ".join([_signal(signal), *_part(worst)])
    agreements = [o.agreement for o in outputs if o.agreement is not None]
    answers = _ANSWERS[accuracy]
    if agreements:
        answers = f"same answers on {min(agreements):.1%}".replace("%", " %")
    return Verdict(level, f"{opening}: {answers} ({measures}), {_joined(gains, slow)}{advice}.")


def _joined(gains: Sequence[str], slow: bool) -> str:
    return (", but " if slow else ", ").join(gains)


def accuracy_of(outputs: Sequence[OutputComparison]) -> Level:
    """Return how good the worst of some outputs is, whatever time the model takes."""
    return min((level_of(output) for output in outputs), key=_RANK.index, default="unknown")


_RANK: list[Level] = ["poor", "fair", "good"]


def level_of(output: OutputComparison) -> Level:
    """Return how good one output is: by the loss of its worst part, or by what it answers."""
    by_noise = output.judged is None or output.judged.worst.kind == "sqnr"
    (good, fair), loss = _LIMITS[by_noise], _loss(output)
    agreement = output.agreement if output.agreement is not None else 0.0
    differs = output.agreement is not None and output.agreement < _LEAST_AGREEMENT
    agrees = agreement >= _GOOD_AGREEMENT and loss <= _AGREEING_LIMITS[by_noise]
    if agrees or (loss <= good and not differs):
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


def _times(ratio: float) -> str:
    if 0.95 <= ratio <= 1.05:
        return "as large"
    word = "smaller" if ratio > 1 else "larger"
    return f"{max(ratio, 1 / ratio):.1f} × {word}"
