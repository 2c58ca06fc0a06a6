"""Certification: what a variant that was made and written is worth beside float and the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bitwright.assess import Clock, Level, accuracy_of, judge_outputs
from bitwright.errors import ModelError
from bitwright.jobs.output import LOST_LOSS
from bitwright.jobs.publishing.variants import VARIANTS
from bitwright.jobs.result import Result
from bitwright.run.trial import try_opening
from bitwright.support.logs import logged

_ALIKE = 0.02
"""Share by which sizes differ that nobody chooses by."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a variant of a part, and why it is not written, if it is not."""

    part: str
    variant: str = ""
    file: str = ""
    """Where it goes, in the folder."""
    reason: str | None = None
    """Why it is not written; None: it is."""
    hashes: dict[str, str] = {}
    """File -> SHA-256 of its bytes: the model first, then its weights."""
    size: int = 0
    """Bytes of all its files."""
    level: Level = "unknown"
    verdict: str = ""
    loss: float | None = None
    loss_interval: tuple[float, float] | None = None
    agreement: float | None = None
    """Share of answers that are float's, of the output where it is smallest."""
    worst_sample: int | None = None
    """The number of the sample that lost most."""
    clock: Clock | None = None
    samples: int = 0
    random: bool = False
    """Whether the samples were made up."""
    recipe: Any = None
    plan: str | None = None
    """The SHA-256 of the plan's JSON."""
    notes: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Where its report goes."""
        return f"reports/{self.file.replace('/', '-').removesuffix('.onnx')}.html"

    @property
    def outcome(self) -> str:
        """The verdict, or why there is none."""
        return self.verdict if self.reason is None else f"not written: {self.reason}"

    @property
    def time(self) -> str:
        """Its time over the prepared float model's."""
        return "-" if self.clock is None else f"{self.clock.figure()} {self.clock.interval()}"

    def with_(self, **changes: Any) -> Certificate:
        """Return the same with other fields."""
        return msgspec.structs.replace(self, **changes)


@logged("certify")
def certify(known: Certificate, path: Path, result: Result | None) -> Certificate:
    """Return what a variant that was written is worth, or why it is worth nothing.

    Its result was run beside the float model; none: it is the float model.
    """
    try:
        try_opening(path)  # as a loader does it
    except ModelError as error:
        return known.with_(reason=str(error).rstrip("."))
    if result is None:
        return known.with_(level="float", verdict="the float model itself")
    outputs, judged, clock = result.outputs, result.judgement, result.clock
    if judged is None:
        return known.with_(reason="it was not run here, and nothing is known of its answers")
    level, sentence = judge_outputs(
        outputs, result.float_size, known.size, clock=clock, purpose="speed", samples=judged.samples
    )
    spread = judged.interval
    known = known.with_(
        level=level,
        verdict=sentence,
        samples=judged.samples,
        loss=judged.loss,
        loss_interval=None if spread is None else (spread.low, spread.high),
        agreement=min((o.agreement for o in outputs if o.agreement is not None), default=None),
        worst_sample=int(judged.losses.argmax()) if len(judged.losses) else None,
        clock=clock,
        notes=(*result.plan.notes, *judged.notes),
    )
    # Random inputs tell only whether anything of the model is left.
    if not judged.loss <= LOST_LOSS if known.random else accuracy_of(outputs) == "poor":
        return known.with_(reason=f"below the bar: {sentence}".rstrip("."))
    if known.size >= (1 - _ALIKE) * result.float_size and (clock is None or not clock.is_faster):
        return known.with_(reason="it is neither smaller nor faster than the float model")
    return known


def why_outdone(one: Certificate, others: Sequence[Certificate]) -> str | None:
    """Return which variant is better in every way that counts, in words, or None.

    That is one which loses no more, and is smaller and not slower, or faster and not larger,
    wherever this one runs.
    """
    for other in others:
        if other.loss is None or one.loss is None or other.loss > one.loss:
            continue
        if VARIANTS[other.variant].runs_on not in ("any", VARIANTS[one.variant].runs_on):
            continue
        smaller = other.size < (1 - _ALIKE) * one.size
        larger = other.size > (1 + _ALIKE) * one.size
        faster = slower = False
        if one.clock is not None and other.clock is not None:
            faster = other.clock.high < one.clock.low
            slower = other.clock.low > one.clock.high
        if (smaller and not slower) or (faster and not larger):
            gains = [word for word, holds in (("smaller", smaller), ("faster", faster)) if holds]
            return f"{other.variant} is {' and '.join(gains)}, and loses no more"
    return None
