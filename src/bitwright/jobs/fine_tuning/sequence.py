"""Learn segments one after the other, each for the inputs that the learned ones before it give.

Two models run side by side over the same samples: the float one, and one whose activations are
quantized and whose weights are what was learned so far. Each node of both runs once per sample.
Where segments are not sequential the weights stay as plain quantization has them, so that any
number of segments can learn at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.errors import DataError
from bitwright.graph import carry_model, fingerprint
from bitwright.jobs.calibration import Calibration, Evaluation
from bitwright.jobs.compute import Compute
from bitwright.jobs.fine_tuning.checkpoints import Checkpoints
from bitwright.jobs.fine_tuning.segment import SegmentLearner, Tuned
from bitwright.jobs.fine_tuning.workers import (
    LearnAll,
    ReadSegment,
    SegmentTask,
    SegmentWorkers,
    segment_learner,
)
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned
from bitwright.learning.reports import notes_of
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning
from bitwright.run import LayerInputs, run_side_by_side
from bitwright.support.engines import LOCAL, Engine, Workers
from bitwright.support.progress import Progress, ProgressUpdate, show_progress

__all__ = ["fine_tune", "fine_tune_weights"]

Array = npt.NDArray[Any]


def fine_tune_weights(
    prepared: Prepared, plan: QuantPlan, calibration: Calibration, compute: Compute
) -> Planned:
    """Learn the weights of a model for its plan.

    The samples that the result is measured on are not learned from.
    """
    method = plan.recipe.fine_tune
    assert method is not None
    if calibration.data is None:
        raise DataError(
            f"recipe {plan.recipe.name!r} fine-tunes weights and needs calibration data",
            remedy="give data, or take a recipe without fine_tune",
            command="give --data PATH, or take a recipe without fine_tune",
        )
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
    starts = list(dict.fromkeys(segment.first for segment in learner.segments))
    digest = hashlib.sha256()
    with ExitStack() as stack:
        inputs = stack.enter_context(
            run_side_by_side(
                model,
                learner.quantized_model(),
                starts,
                _digested(islice(samples, plan.recipe.emulate.fine_tune.samples), digest),
                weights=learner.stored,
                providers=providers,
            )
        )
        job = "" if work is None else _job_name(model, plan, method, device, digest.digest())
        store = stack.enter_context(Checkpoints(work, job=job))
        report = stack.enter_context(show_progress(progress, "Fine-tuning", len(learner.segments)))
        if method.sequential:
            _learn_in_sequence(learner, inputs, store if work is not None else None, report)
        elif engine.is_local:
            with SegmentWorkers(model, plan, method, device, store, learner) as workers:
                _learn_in_parallel(learner, inputs, store, report, workers.learn_all)
        else:
            shared = (carry_model(model), plan, method, device)
            with engine.open(segment_learner, *shared) as remote:
                _learn_in_parallel(learner, inputs, store, report, partial(_learn_on, remote))
    return learner.tuned


def _learn_in_sequence(
    learner: SegmentLearner,
    inputs: Iterable[tuple[LayerInputs, LayerInputs]],
    store: Checkpoints | None,
    report: ProgressUpdate,
) -> None:
    """Let each segment learn from what the learned segments before it give."""
    done = 0
    for floats, quantized in inputs:
        for index in _segments_at(learner, floats.node):
            name = Checkpoints.segment_name(index, floats.node)
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
            done += 1
            report(done, str(learned.report))


def _learn_in_parallel(
    learner: SegmentLearner,
    inputs: Iterable[tuple[LayerInputs, LayerInputs]],
    store: Checkpoints,
    report: ProgressUpdate,
    learn_all: LearnAll,
) -> None:
    """Let segments learn from what plainly quantized ones give, several at a time."""
    names = [
        store.segment_name(index, segment.first) for index, segment in enumerate(learner.segments)
    ]
    done = 0

    def report_finished(finished: Iterable[int]) -> None:
        nonlocal done
        for index in finished:
            done += 1
            report(done, str(store.get(names[index]).report))

    report_finished(index for index, name in enumerate(names) if name in store)
    if done < len(names):
        report_finished(
            learn_all(
                learner,
                store,
                (
                    (index, quantized, floats)
                    for floats, quantized in inputs
                    for index in _segments_at(learner, floats.node)
                    if names[index] not in store
                ),
            )
        )
    for index, name in enumerate(names):
        learner.keep(index, store.get(name))


def _learn_on(
    workers: Workers, learner: SegmentLearner, store: Checkpoints, segments: Iterable[ReadSegment]
) -> Iterator[int]:
    """Let the workers of an engine learn segments; yield each when it is stored."""
    begun: list[int] = []

    def tasks() -> Iterator[SegmentTask]:
        for index, quantized, floats in segments:
            begun.append(index)
            read = learner.segments[index].inputs
            rows = ({t: list(side.values(t)) for t in read} for side in (quantized, floats))
            yield SegmentTask(index, *rows)

    for place, learned in enumerate(workers.map(tasks())):
        index = begun[place]
        store.put(store.segment_name(index, learner.segments[index].first), learned)
        yield index


def _segments_at(learner: SegmentLearner, node: str) -> list[int]:
    return [index for index, segment in enumerate(learner.segments) if segment.first == node]


def _digested(samples: Iterable[Mapping[str, Array]], digest: Any) -> Iterator[Mapping[str, Array]]:
    """Yield the samples, and take note of what they hold."""
    for sample in samples:
        for name, array in sorted(sample.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            if array.size:
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        yield sample


def _job_name(
    model: ir.Model, plan: QuantPlan, method: FineTuning, device: str, data: bytes
) -> str:
    """Return what checkpoints must belong to: this model, plan, data and kind of device."""
    digest = hashlib.sha256(fingerprint(model, weights=True).encode())
    plain = msgspec.structs.replace(plan, notes=[], recipe=plan.recipe.replace(fine_tune=None))
    digest.update(plain.to_json().encode())
    digest.update(msgspec.json.encode(msgspec.structs.replace(method, workers=1)))
    digest.update(device.partition(":")[0].encode())
    digest.update(data)
    return digest.hexdigest()
