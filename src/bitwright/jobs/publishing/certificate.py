"""Certification: what a variant that was made and written is worth beside float and the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bitwright import graph
from bitwright.assess import Clock, Level, accuracy_of, judge_outputs
from bitwright.assess.bench import BenchRequest, bench_models
from bitwright.data import Sample
from bitwright.errors import MissingPackageError, ModelError
from bitwright.jobs.output import LOST_LOSS
from bitwright.jobs.publishing.variants import VARIANTS, Variant
from bitwright.jobs.result import Result
from bitwright.run.trial import try_opening
from bitwright.support.logs import logged

_ALIKE = 0.02
"""Share by which sizes differ that nobody chooses by."""
_MAX_WEB_SIZE = 1 << 30
"""Bytes of a float model that is timed in onnxruntime-web, whose memory ends at 4 GB."""


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
    web: Clock | None = None
    """Its time in onnxruntime-web, where that is the loader's own runtime and node finds it."""
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
    def own_clock(self) -> Clock | None:
        """Its time where its loader runs it, as far as that is known: not on GPUs."""
        on_gpu = self.variant and VARIANTS[self.variant].runs_on == "gpu"
        return None if on_gpu else self.web or self.clock

    @property
    def time(self) -> str:
        """Its time over the prepared float model's, natively and in wasm."""
        clocks = (("", self.clock), ("wasm ", self.web))
        found = (f"{where}{c.figure()} {c.interval()}" for where, c in clocks if c is not None)
        return ", ".join(found) or "-"

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


def time_in_web(
    known: Certificate, variant: Variant, source: Path, path: Path, samples: Sequence[Sample]
) -> Certificate:
    """Return what is known of a variant and its time in onnxruntime-web, where node has that.

    What that refuses is not written, unless it is for GPUs.
    """
    if graph.file_size(source) > _MAX_WEB_SIZE:
        return known
    how = BenchRequest(data=samples, runtime="web", profile=False, seconds=1, progress=False)
    try:
        if known.level == "float":
            bench_models([path], how)
            return known
        return known.with_(web=bench_models([source, path], how).models[1].clocks[0])
    except MissingPackageError:
        return known
    except ModelError as error:
        refused = variant.runs_on != "gpu" and repr(path.name) in str(error)
        return known.with_(reason=str(error).rstrip(".") if refused else None)


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
        if (ours := one.own_clock) is not None and (theirs := other.own_clock) is not None:
            faster, slower = theirs.high < ours.low, theirs.low > ours.high
        if (smaller and not slower) or (faster and not larger):
            gains = [word for word, holds in (("smaller", smaller), ("faster", faster)) if holds]
            return f"{other.variant} is {' and '.join(gains)}, and loses no more"
    return None
