"""Segments that learn several at a time: in worker processes, or on the machines of an engine.

A segment learns with one thread wherever it learns, so that the result does not depend on how many
workers there are. What it reads travels to a process as files that are mapped into memory, what it
learned as its checkpoint; of neither are there more than segments at work, and one that waits.
"""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from bitwright.errors import ModelError
from bitwright.graph import carried_model, carry_model, load_model, save_model
from bitwright.jobs.fine_tuning.segment import Checkpoints, Learned, SegmentLearner
from bitwright.learning.segment_target import Rows
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning
from bitwright.run import LayerwiseRun, SharedRow
from bitwright.support import Closing, Engine, ScratchFolder, WorkerError, WorkerLost, WorkerProcess

ReadSegment = tuple[int, LayerwiseRun, LayerwiseRun]
"""A segment, and what it reads in the float and in the quantized model."""
LearnAll = Callable[[Iterable[ReadSegment]], Iterator[int]]
"""Lets segments learn, and yields each when it is stored."""

MAX_WORKERS = 8
"""Workers where no number is asked for: each takes the memory of torch, the model and a segment."""

_WORKER = Path(__file__)


@contextmanager
def open_workers(
    learner: SegmentLearner, store: Checkpoints, engine: Engine, *, missing: int
) -> Iterator[LearnAll]:
    """Give what lets the missing segments learn: an engine, other processes, or this one."""
    job = (learner.plan, learner.method, learner.device)
    if not engine.is_local:
        with engine.open(_remote_learner, carry_model(learner.model), *job) as workers:
            yield partial(_learn_with, workers.map, list, learner, store)
        return
    wanted = learner.method.workers or min(os.cpu_count() or 1, MAX_WORKERS)
    count = max(1, min(wanted, missing))
    if count == 1:
        yield partial(_learn_with, partial(map, _one_by_one(learner)), iter, learner, store)
        return
    with SegmentWorkers(learner, store, count) as processes:
        yield processes.learn_all


class _Task(NamedTuple):
    """A segment to learn, with all that it reads."""

    segment: int
    quantized: Rows
    floats: Rows


def _learn_with(
    apply: Callable[[Iterator[_Task]], Iterator[Learned]],
    keep: Callable[[Iterable[Any]], Iterable[Any]],
    learner: SegmentLearner,
    store: Checkpoints,
    segments: Iterable[ReadSegment],
) -> Iterator[int]:
    """Let segments learn, and store them in their order; `keep` holds what a tensor has."""
    begun: list[int] = []

    def tasks() -> Iterator[_Task]:
        for index, floats, quantized in segments:
            begun.append(index)
            read = learner.segments[index].inputs
            yield _Task(
                index, *({t: keep(side.values(t)) for t in read} for side in (quantized, floats))
            )

    for place, learned in enumerate(apply(tasks())):
        store.put(learner.name_of(begun[place]), learned)
        yield begun[place]


def _remote_learner(model: Any, *job: Any) -> Callable[[_Task], Learned]:
    """Return what learns segments of a model that was sent here."""
    return _one_by_one(SegmentLearner(carried_model(model), *job))


def _one_by_one(learner: SegmentLearner) -> Callable[[_Task], Learned]:
    def learn(task: _Task) -> Learned:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return learner.learn(*task)
        finally:
            torch.set_num_threads(before)

    return learn


class SegmentWorkers(Closing):
    """Worker processes that learn segments, and store what they learned."""

    def __init__(self, learner: SegmentLearner, store: Checkpoints, count: int) -> None:
        self._learner, self._count = learner, count
        self._pending: dict[Future[None], int] = {}
        self._threads = ThreadPoolExecutor(count)
        self._scratch = ScratchFolder("segments")
        model = self._scratch.path / "model.onnx"
        save_model(learner.model, model)
        learner.plan.save(model.with_suffix(".json"))
        self._job = {
            "model": str(model),
            "method": msgspec.to_builtins(learner.method),
            "device": learner.device,
            "store": str(store.folder),
            "job": store.job,
        }
        self._processes = [WorkerProcess(_WORKER) for _ in range(count)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def learn_all(self, segments: Iterable[ReadSegment]) -> Iterator[int]:
        """Let segments learn; yield each when it is stored."""
        for index, floats, quantized in segments:
            folder = self._scratch.path / str(index)
            folder.mkdir()
            rows = [
                {
                    tensor: msgspec.to_builtins(side.share(tensor, folder / f"{kind}{place}.bin"))
                    for place, tensor in enumerate(self._learner.segments[index].inputs)
                }
                for kind, side in (("quantized", quantized), ("floats", floats))
            ]
            self._pending[self._threads.submit(self._learn, index, rows, folder)] = index
            # One more than there are workers may wait, so that no worker does.
            yield from self._collect(self._count)
        yield from self._collect(0)

    def _collect(self, most: int) -> Iterator[int]:
        """Wait until no more than so many are pending; yield those that are done."""
        while len(self._pending) > most:
            for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
                index = self._pending.pop(future)
                future.result()
                yield index

    def _learn(self, index: int, rows: list[dict[str, Any]], folder: Path) -> None:
        """Have a segment learned by the next worker; what goes wrong there is raised here."""
        process = self._idle.get()
        try:
            name = self._learner.name_of(index)
            process.call("learn", job=self._job, index=index, name=name, rows=rows)
        except WorkerLost as error:
            raise ModelError(
                f"a worker of fine-tuning {error}; the machine may have too little memory for so "
                "many, set fewer workers."
            ) from error
        except WorkerError as error:
            raise ModelError(f"a worker of fine-tuning failed: {error}") from error
        finally:
            self._idle.put(process)
        for file in folder.iterdir():
            with suppress(OSError):
                file.unlink()

    def close(self) -> None:
        """End all workers at once, whatever they are doing."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._scratch.close()


class Worker:
    """What a worker process runs: the segments of one job, and the store that they go to."""

    def __init__(self) -> None:
        # Ctrl-C goes to all processes of a terminal; the one that asks decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._opened: tuple[Callable[[_Task], Learned], Checkpoints] | None = None

    def learn(self, job: dict[str, Any], index: int, name: str, rows: list[dict[str, Any]]) -> None:
        """Learn a segment and store it; the first call opens the model."""
        if self._opened is None:
            method: FineTuning = msgspec.convert(job["method"], FineTuning)
            plan = QuantPlan.load(Path(job["model"]).with_suffix(".json"))
            learner = SegmentLearner(load_model(job["model"]), plan, method, job["device"])
            self._opened = _one_by_one(learner), Checkpoints(job["store"], job=job["job"])
        learn, store = self._opened
        sides = ({t: msgspec.convert(row, SharedRow) for t, row in side.items()} for side in rows)
        store.put(name, learn(_Task(index, *sides)))
