"""Learn segments one after the other, each for the inputs that the learned ones before it give.

Two models run side by side over the same samples: the float one, and one whose activations are
quantized and whose weights are what was learned so far. Each node of both runs once per sample.
Where segments are not sequential the weights stay as plain quantization has them, so that any
number of segments can learn at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

from bitwright.graph import fingerprint
from bitwright.jobs.calibration import Calibration, Evaluation, require_data
from bitwright.jobs.fine_tuning.segment import Checkpoints, SegmentLearner, Tuned
from bitwright.jobs.fine_tuning.workers import ReadSegment, open_workers
from bitwright.jobs.opening import Compute, Prepared
from bitwright.jobs.output import Planned
from bitwright.learning.reports import notes_of
from bitwright.learning.segments import Segment
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning
from bitwright.run import run_side_by_side
from bitwright.support import LOCAL, Array, Engine, digest_arrays
from bitwright.support.progress import Progress, ProgressUpdate, show_progress


def fine_tune_weights(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
) -> Planned:
    """Learn the weights of a model for its plan.

    The samples that the result is measured on are not learned from.
    """
    method = plan.recipe.fine_tune
    assert method is not None
    instead = "take a recipe without fine_tune"
    require_data(plan.recipe, calibration, "fine-tunes weights", (instead, instead))
    split = calibration.split(prepared.model)
    tuned = fine_tune(
        prepared.model,
        plan,
        method,
        split,
        device=compute.device,
        providers=prepared.providers,
        work=compute.work,
        engine=calibration.engine,
        progress=calibration.progress,
    )
    return Planned(
        tuned.plan.with_notes(notes_of(tuned.reports)), tuned.constants, Evaluation.of(split)
    )


def fine_tune(  # noqa: PLR0913 - what learns, how and where
    model: ir.Model,
    plan: QuantPlan,
    method: FineTuning,
    samples: Iterable[Mapping[str, Array]],
    *,
    device: str = "cpu",
    providers: Sequence[str] | None = None,
    work: str | Path | None = None,
    engine: Engine = LOCAL,
    progress: Progress = False,
) -> Tuned:
    """Learn the weights of a float model for its plan; `samples` are read once.

    `work` is a folder that keeps each segment as soon as it has learned: a run that was interrupted
    goes on from there, and gives what it would have given. On an `engine` that is not this process,
    segments that do not depend on each other learn at the same time.
    """
    learner = SegmentLearner(model, plan, method, device)
    if not learner.segments:
        return learner.tuned
    digest = hashlib.sha256()
    with ExitStack() as stack:
        inputs = stack.enter_context(
            run_segments(
                model,
                learner.quantized_model(),
                learner.segments,
                _digested(islice(samples, plan.recipe.emulate.fine_tune.samples), digest),
                weights=learner.stored,
                providers=providers,
            )
        )
        job = "" if work is None else _job_name(learner, digest.digest())
        store = stack.enter_context(Checkpoints(work, job=job))
        report = stack.enter_context(show_progress(progress, "Fine-tuning", len(learner.segments)))
        if method.sequential:
            _learn_in_sequence(learner, inputs, store if work is not None else None, report)
        else:
            _learn_in_parallel(learner, inputs, store, report, engine)
    return learner.tuned


@contextmanager
def run_segments(
    model: ir.Model,
    quantized: ir.Model,
    segments: Sequence[Segment],
    samples: Iterable[Mapping[str, Array]],
    *,
    weights: Mapping[str, Array | ir.TensorProtocol],
    providers: Sequence[str] | None = None,
) -> Iterator[Iterator[ReadSegment]]:
    """Run two models side by side, and give each segment with what it reads in them."""
    starts = list(dict.fromkeys(segment.first for segment in segments))
    with run_side_by_side(
        model, quantized, starts, samples, weights=weights, providers=providers
    ) as layers:
        yield (
            (index, floats, other)
            for floats, other in layers
            for index, segment in enumerate(segments)
            if segment.first == floats.node
        )


def _learn_in_sequence(
    learner: SegmentLearner,
    inputs: Iterable[ReadSegment],
    store: Checkpoints | None,
    report: ProgressUpdate,
) -> None:
    """Let each segment learn from what the learned segments before it give."""
    for done, (index, floats, quantized) in enumerate(inputs, start=1):
        name = learner.name_of(index)
        if store is not None and name in store:
            learned = store.get(name)
        else:
            read = learner.segments[index].inputs
            learned = learner.learn(index, quantized.rows(read), floats.rows(read))
            if store is not None:
                store.put(name, learned)
        for constant, array in learner.keep(index, learned).items():
            quantized.put_weight(constant, array)
        if learned.activation_scales:
            quantized.put_model(learner.quantized_model())
        report(done, str(learned.report))


def _learn_in_parallel(
    learner: SegmentLearner,
    inputs: Iterable[ReadSegment],
    store: Checkpoints,
    report: ProgressUpdate,
    engine: Engine,
) -> None:
    """Let segments learn from what plainly quantized ones give, several at a time."""
    names = [learner.name_of(index) for index in range(len(learner.segments))]
    known = [index for index, name in enumerate(names) if name in store]
    missing = len(names) - len(known)
    with open_workers(learner, store, engine, missing=missing) as learn_all:
        read = (one for one in inputs if one[0] not in known) if missing else ()
        for done, index in enumerate(chain(known, learn_all(read)), start=1):
            report(done, str(store.get(names[index]).report))
    for index, name in enumerate(names):
        learner.keep(index, store.get(name))


def _digested(samples: Iterable[Mapping[str, Array]], digest: Any) -> Iterator[Mapping[str, Array]]:
    """Yield the samples, and take note of what they hold."""
    for sample in samples:
        digest_arrays(sample, digest)
        yield sample


def _job_name(learner: SegmentLearner, data: bytes) -> str:
    """Return what checkpoints must belong to: this model, plan, data and kind of device."""
    plan, method = learner.plan, learner.method
    digest = hashlib.sha256(fingerprint(learner.model, weights=True).encode())
    plain = msgspec.structs.replace(plan, notes=[], recipe=plan.recipe.replace(fine_tune=None))
    digest.update(plain.to_json().encode())
    digest.update(msgspec.json.encode(msgspec.structs.replace(method, workers=1)))
    digest.update(learner.device.partition(":")[0].encode())
    digest.update(data)
    return digest.hexdigest()
