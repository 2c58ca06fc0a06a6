"""Workers on a Ray cluster: items go to its processes; what dies is done again by another one.

Items are tasks, not calls of actors: where a machine is gone for good, an actor waits for a CPU to
be restarted on, and with it the item that it had. A process of the cluster makes what is expensive
(sessions) once, and keeps it for the next item. Results come in the order of the items, whoever
made them, and are the same for any number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol
from uuid import uuid4

from bitwright.errors import ClusterError, DataError
from bitwright.support.cluster_connection import START_SECONDS
from bitwright.support.files import Closing
from bitwright.support.threads import limit_threads
from bitwright.support.wording import reason_of, warn_user

MAX_DEATHS = 4
"""Workers that may die over one item before it is taken for the reason."""
MAX_STARTS = 4
"""Processes that may die at their start before the cluster is taken for unfit."""
CHECK_SECONDS = 10.0
"""How often to look whether a cluster that gives no result still has a CPU."""
FAN_IN = 8
"""Results that are merged at a time, by a worker, before they travel."""
AHEAD = 4
"""Results for each worker that may wait for one before them."""
_NO_WORKER = (
    "no worker of the cluster has started; check that it has a free CPU, and that bitwright is "
    "installed on its machines."
)


class KeptParts(Protocol):
    """Where parts of a merged result are kept, so that a run that was killed goes on from them."""

    def __contains__(self, number: object) -> bool:
        """Whether this part is there."""

    def get(self, number: int) -> Any:
        """Return a part."""

    def put(self, number: int, part: Any) -> None:
        """Keep a part: all of it, or nothing."""


_made: dict[str, Callable[[Any], Any]] = {}
"""The function that this process of a cluster made last, under the key of its workers."""


def run_item(key: str, make: Callable[..., Any], shared: Sequence[Any], item: Any) -> Any:
    """Return the result for an item, in a process of the cluster."""
    if key not in _made:
        import ray

        limit_threads(1)  # it has one CPU, and others are beside it
        _made.clear()
        _made[key] = make(*(ray.get(ref) for ref in shared))
    result = _made[key](item)
    return list(result) if isinstance(result, Iterator) else result


def run_part(*call: Any) -> tuple[None, Any]:
    """Return a sign that an item is done, and its result, which can stay on this machine."""
    return None, run_item(*call)


def answer() -> None:
    """Answer, which means that a process has started."""


def merge_parts(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    """Merge results, one after the other."""
    merged = parts[0]
    for part in parts[1:]:
        merged = merge(merged, part)
    return merged


def merge_tree(merge: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """Merge neighbours, and theirs: a long list is not copied for each of its parts."""
    while len(parts) > 1:
        pairs = zip(parts[::2], [*parts[1::2], None], strict=False)
        parts = [one if other is None else merge(one, other) for one, other in pairs]
    return parts[0] if parts else None


@dataclass(slots=True, eq=False)
class _Group:
    """Neighbouring items; their results are merged on the cluster if there are several."""

    number: int
    items: list[Any]
    """References to them, kept until the group is done: a machine that dies takes results."""
    sizes: list[int]
    parts: list[Any]
    """References to their results; None where there has been none yet."""
    unfinished: int
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Task:
    """What a process is to do: the item at a place or, without one, merge what there is of all."""

    group: _Group
    place: int | None
    part: Any = None


class ClusterWorkers(Closing):
    """Applies a function, which each process makes of shared values, to items on a cluster.

    `make` is a function of a module, called once in a process with the shared values, which are
    sent to each machine once. No more than `count` items are worked on at a time.
    """

    def __init__(
        self,
        ray: Any,
        make: Callable[..., Callable[[Any], Any]],
        shared: Sequence[Any],
        *,
        count: int | None = None,
        shard: int = 1,
    ) -> None:
        self._ray, self._make, self._shard, self._key = ray, make, shard, uuid4().hex
        errors = ray.exceptions
        self._lost = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RaySystemError,
        )
        with self._in_words():
            self._shared = [ray.put(value) for value in shared]
            self._count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._run, self._run_part = ray.remote(run_item), ray.remote(run_part)
        # Without a CPU of its own: items may hold all there are.
        self._combine = ray.remote(merge_parts).options(num_cpus=0, max_retries=0)
        # Not retried by Ray, which says nothing of it: see `_redo`.
        self._options = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self._has_started = False

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item, in their order."""
        waiting: dict[int, Any] = {}
        first = 0

        def tasks() -> Iterator[_Task | None]:
            for number, item in enumerate(items):
                while number - first >= AHEAD * self._count:
                    yield None
                yield _Task(_Group(number, [self._ray.put(item)], [1], [None], 1), 0)

        for task, result in self._finish(tasks()):
            waiting[task.group.number] = result
            while first in waiting:
                first += 1
                yield waiting.pop(first - 1)

    def stream(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each sample, in their order; a worker gets a shard at a time."""
        for part in self.map(self._shards(samples)):
            yield from part

    def reduce(
        self,
        samples: Iterable[Any],
        merge: Callable[[Any, Any], Any],
        *,
        on_done: Callable[[int], None] = lambda done: None,
        kept: KeptParts | None = None,
    ) -> Any:
        """Return the results of all shards merged, None where there is no sample.

        Neighbours are merged first, on the cluster, so that `merge` need not commute and one in
        eight results travels here. What travelled is `kept`, and not done again if it is there.
        """
        parts: dict[int, Any] = {}
        done = 0

        def report(size: int) -> None:
            nonlocal done
            done += size
            on_done(done)

        def tasks() -> Iterator[_Task]:
            for number, group in enumerate(self._shards(self._shards(samples), FAN_IN)):
                if kept is None or number not in kept:
                    yield from self._tasks_of(number, group)
                    continue
                if len(group) < FAN_IN:
                    raise DataError(
                        "there are fewer samples than in the run that is to go on; delete its "
                        "folder, or name another one."
                    )
                parts[number] = kept.get(number)
                report(sum(map(len, group)))

        merges: deque[_Task] = deque()
        for task, result in self._finish(tasks(), merges, merge):
            group = task.group
            if task.place is None:
                parts[group.number] = result
                if kept is not None and len(group.items) == FAN_IN:
                    kept.put(group.number, result)
                continue
            if group.parts[task.place] is None:
                report(group.sizes[task.place])
            group.parts[task.place] = task.part
            group.unfinished -= 1
            if not group.unfinished:
                merges.append(_Task(group, None))
        return merge_tree(merge, [parts[number] for number in range(len(parts))])

    def close(self) -> None:
        """Nothing is left behind: what runs ends with the results that it was asked for."""

    def _shards(self, samples: Iterable[Any], size: int | None = None) -> Iterator[list[Any]]:
        iterator = iter(samples)
        while shard := list(islice(iterator, size or self._shard)):
            yield shard

    def _tasks_of(self, number: int, items: Sequence[Any]) -> list[_Task]:
        """Return a task for each item of a group."""
        references = [self._ray.put(item) for item in items]
        sizes = [len(item) for item in items]
        group = _Group(number, references, sizes, [None] * len(items), len(items))
        return [_Task(group, place) for place in range(len(items))]

    def _finish(
        self,
        tasks: Iterator[_Task | None],
        first: deque[_Task] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> Iterator[tuple[_Task, Any]]:
        """Yield each task when it is done, with its result; those in `first` are begun at once.

        With `merge`, results of items stay on the cluster. `tasks` yields None while there is
        nothing to begin.
        """
        queue = deque() if first is None else first
        running: dict[Any, _Task] = {}
        try:
            with self._in_words():
                while True:
                    while len(running) < self._count:
                        task = queue.popleft() if queue else next(tasks, None)
                        if task is None:
                            break
                        self._check_start()
                        running[self._submit(task, merge)] = task
                    if not running:
                        return
                    ready, _ = self._ray.wait([*running], timeout=CHECK_SECONDS)
                    if not ready:
                        self._check_resources()
                        continue
                    task = running.pop(ready[0])
                    try:
                        result = self._get(ready[0])
                    except self._lost:
                        queue.extend(self._redo(task))
                    else:
                        yield task, result
        finally:
            for reference in running:
                with suppress(self._ray.exceptions.RayError, ConnectionError):
                    self._ray.cancel(reference, force=True)

    def _submit(self, task: _Task, merge: Callable[[Any, Any], Any] | None) -> Any:
        """Send a task to the cluster, and return a reference to what tells that it is done."""
        group = task.group
        if task.place is None:
            return self._combine.remote(merge, *group.parts)
        call = self._key, self._make, self._shared, group.items[task.place]
        if merge is None:
            return self._run.options(**self._options).remote(*call)
        done, task.part = self._run_part.options(num_returns=2, **self._options).remote(*call)
        return done

    def _redo(self, task: _Task) -> list[_Task]:
        """Return what is to be done again, where a process died, or a machine with results."""
        group = task.group
        group.deaths += 1
        if group.deaths >= MAX_DEATHS:
            raise ClusterError(
                f"{group.deaths} workers died over the same samples (shard {group.number}); see "
                "the cluster's logs: they may need more memory, or smaller shards."
            )
        who = "a machine" if task.place is None else "a worker"
        warn_user(f"{who} of the cluster died; shard {group.number} is done again by another one.")
        if task.place is not None:
            return [task]
        group.unfinished = len(group.items)
        return [_Task(group, place) for place in range(len(group.items))]

    def _check_start(self) -> None:
        """See that processes of the cluster start, and find what they are to run."""
        if self._has_started:
            return
        self._has_started = True
        options = {**self._options, "max_retries": MAX_STARTS - 1}
        answered = self._ray.remote(answer).options(**options).remote()
        ready, _ = self._ray.wait([answered], timeout=START_SECONDS)
        if not ready:
            raise ClusterError(_NO_WORKER)
        try:
            self._get(answered)
        except Exception as error:
            raise ClusterError(
                f"the workers of the cluster do not start ({reason_of(error, last=True)}); "
                "check that bitwright is installed on its machines, in the same version."
            ) from error

    def _check_resources(self) -> None:
        """Refuse to wait for a cluster that has lost all of its CPUs."""
        if self._ray.cluster_resources().get("CPU", 0) < 1:
            raise ClusterError(_NO_WORKER)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Tell in a sentence what Ray says when the cluster itself is gone."""
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterError(f"the cluster is lost: {reason_of(error)}.") from error

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            # What failed there fails here as it would in this process.
            if isinstance(cause, Exception):
                raise cause from None
            raise ClusterError(f"a worker failed: {reason_of(error, last=True)}.") from None
