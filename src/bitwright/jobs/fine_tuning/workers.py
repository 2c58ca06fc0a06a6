"""Learn segments in worker processes, each of which learns one at a time.

A segment learns with one thread wherever it learns, so that the result does not depend on how many
workers there are. What it reads travels as files that the worker maps into memory, what it learned
as its checkpoint; of neither are there more than segments at work, and one that waits.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph import carried_model, save_model
from bitwright.jobs.fine_tuning.checkpoints import Checkpoints
from bitwright.jobs.fine_tuning.segment import Learned, SegmentLearner
from bitwright.plan import QuantPlan
from bitwright.recipe import FineTuning
from bitwright.run import LayerInputs
from bitwright.support.files import Closing
from bitwright.support.processes import WorkerError, WorkerLost, WorkerProcess
from bitwright.support.scratch import ScratchFolder

__all__ = [
    "LearnAll",
    "ReadSegment",
    "SegmentTask",
    "SegmentWorkers",
    "one_thread",
    "segment_learner",
]

ReadSegment = tuple[int, LayerInputs, LayerInputs]
"""A segment, and what it reads in the quantized and in the float model."""
LearnAll = Callable[[SegmentLearner, Checkpoints, Iterable[ReadSegment]], Iterable[int]]
"""Lets segments learn, and gives each when it is stored."""

MAX_WORKERS = 8
"""Workers where no number is asked for: each takes the memory of torch, the model and a segment."""

_WORKER = Path(__file__).with_name("worker_process.py")


class SegmentWorkers(Closing):
    """Worker processes that learn, or this process where a single worker is asked for."""

    def __init__(
        self,
        model: ir.Model,
        plan: QuantPlan,
        method: FineTuning,
        device: str,
        store: Checkpoints,
        learner: SegmentLearner,
    ) -> None:
        self._store, self._learner = store, learner
        missing = [
            index
            for index, segment in enumerate(learner.segments)
            if store.segment_name(index, segment.first) not in store
        ]
        wanted = method.workers or min(os.cpu_count() or 1, MAX_WORKERS)
        self._count = max(1, min(wanted, len(missing)))
        self._pending: dict[Future[None], int] = {}
        self._processes: list[_SegmentProcess] = []
        self._idle: queue.SimpleQueue[_SegmentProcess] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(self._count)
        self._scratch = ScratchFolder("segments")
        if self._count == 1:
            return
        path = self._scratch.path / "model.onnx"
        save_model(model, path)
        plan.save(path.with_suffix(".json"))
        order = {
            "model": str(path),
            "plan": str(path.with_suffix(".json")),
            "method": msgspec.to_builtins(method),
            "device": device,
            "store": str(store.folder),
            "job": store.job,
        }
        for _ in range(self._count):
            process = _SegmentProcess(order)
            self._processes.append(process)
            self._idle.put(process)

    def learn_all(
        self, learner: SegmentLearner, store: Checkpoints, segments: Iterable[ReadSegment]
    ) -> Iterator[int]:
        """Let segments learn; yield each when it is stored."""
        for index, quantized, floats in segments:
            yield from self.learn(index, quantized, floats)
        yield from self.finish()

    def learn(self, index: int, quantized: LayerInputs, floats: LayerInputs) -> list[int]:
        """Let a worker learn a segment; return the segments that were finished meanwhile."""
        segment = self._learner.segments[index]
        name = self._store.segment_name(index, segment.first)
        if not self._processes:
            read = segment.inputs
            with one_thread():
                learned = self._learner.learn(index, quantized.rows(read), floats.rows(read))
            self._store.put(name, learned)
            return [index]
        folder = self._scratch.path / str(index)
        folder.mkdir()
        shared = {
            kind: {
                tensor: msgspec.to_builtins(inputs.share(tensor, folder / f"{kind}{place}.bin"))
                for place, tensor in enumerate(segment.inputs)
            }
            for kind, inputs in (("quantized", quantized), ("floats", floats))
        }
        self._pending[self._threads.submit(self._call, index, name, shared, folder)] = index
        # One more than there are workers may wait, so that no worker does.
        return self._collect(self._count)

    def finish(self) -> Iterator[int]:
        """Yield the segments that are still being learned, as they are finished."""
        while self._pending:
            yield from self._collect(len(self._pending) - 1)

    def _collect(self, most: int) -> list[int]:
        """Wait until no more than so many are pending; return those that are done."""
        done: list[int] = []
        while len(self._pending) > most:
            for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
                index = self._pending.pop(future)
                future.result()
                done.append(index)
        return done

    def _call(self, index: int, name: str, shared: dict[str, Any], folder: Path) -> None:
        process = self._idle.get()
        try:
            process.learn(index=index, name=name, **shared)
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


class _SegmentProcess(WorkerProcess):
    """A worker for the segments of one job."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__(_WORKER)
        self._order: dict[str, Any] | None = order

    def learn(self, **request: Any) -> None:
        """Have a segment learned; what goes wrong there is raised here."""
        order, self._order = self._order, None
        try:
            if order is not None:
                # Not before: opening takes a while, and all workers can do so at once.
                self.call("open", **order)
            self.call("learn", **request)
        except WorkerLost as error:
            raise ModelError(
                f"a worker of fine-tuning {error}; the machine may have too little memory for so "
                "many, set fewer workers."
            ) from error
        except WorkerError as error:
            raise ModelError(f"a worker of fine-tuning failed: {error}") from error


class SegmentTask(NamedTuple):
    """A segment to learn elsewhere, with all that it reads."""

    segment: int
    quantized: dict[str, list[npt.NDArray[Any]]]
    floats: dict[str, list[npt.NDArray[Any]]]


def segment_learner(
    model: Any, plan: QuantPlan, method: FineTuning, device: str
) -> Callable[[SegmentTask], Learned]:
    """Return what learns segments of a model that was sent here."""
    learner = SegmentLearner(carried_model(model), plan, method, device)

    def learn(task: SegmentTask) -> Learned:
        with one_thread():
            return learner.learn(task.segment, task.quantized, task.floats)

    return learn


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread on the CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
