"""Workers on a Ray cluster: items go to them, what dies is replaced and its item done again.

Workers are actors, which hold what is expensive to make (sessions) from item to item. Results come
in the order of the items, whoever made them, and are the same for any number of workers.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from bitwright.errors import BitwrightError, ClusterError, DataError, MissingPackageError
from bitwright.support.files import Closing
from bitwright.support.notices import warn_user
from bitwright.support.threads import limit_threads
from bitwright.support.witness import watch_node

__all__ = ["ClusterWorkers", "KeptParts", "all_nodes_see", "open_cluster"]

_LOGGER = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
"""How long to wait for a cluster to answer."""
START_SECONDS = 180.0
"""How long to wait for a first worker: a new machine imports for a while."""
START_ATTEMPTS = 3
"""How often to start a cluster on a machine that is too busy for it."""
MAX_DEATHS = 4
"""Workers that may die over one item before it is taken for the reason."""
MAX_FAILED_STARTS = 4
"""Workers in a row that may fail to start."""
FAN_IN = 8
"""Results that are merged at a time, by a worker, before they travel."""
AHEAD = 4
"""Results for each worker that may wait for one before them."""


@contextmanager
def open_cluster(address: str | None) -> Iterator[Any]:
    """Connect to a cluster and give the `ray` module; a local one is started without an address.

    A connection that the program has already is used, and stays.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "working on a cluster needs ray; run: pip install 'bitwright[ray]'."
        ) from error
    # What failed is raised once already, in our words.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        with _in_words("a local cluster"):
            _start_local(ray, quiet)
    else:
        _check_reachable(address)
        _connect(lambda: ray.init(address=address, **quiet), f"the cluster at {address!r}")
    try:
        with _logged_messages(), _explained_end():
            yield ray
    finally:
        ray.shutdown()


def _explained_end() -> AbstractContextManager[None]:
    """Return what tells the user why Ray ended the process, which it does without a word."""
    import ray._private.worker as module

    # A client outside of the cluster has no node, and gets an error that can be told.
    path = getattr(getattr(module, "_global_node", None), "raylet_socket_name", None)
    return watch_node(path) if path and hasattr(socket, "AF_UNIX") else nullcontext()


@contextmanager
def _logged_messages() -> Iterator[None]:
    """Let what Ray says of processes that died go to the log, not to standard output.

    It has no option for that, and our command may be writing its result there.
    """
    import ray._private.worker as module

    printing = getattr(module, "print_to_stdstream", None)
    if printing is None:
        yield
        return

    def log(data: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for line in data.get("lines", ()):
            _LOGGER.debug("%s", line)

    module.print_to_stdstream = log
    try:
        yield
    finally:
        module.print_to_stdstream = printing


def _start_local(ray: Any, options: dict[str, Any]) -> None:
    """Start a cluster on this machine; again where it was too busy to start one in Ray's time."""
    for attempt in range(START_ATTEMPTS):
        try:
            ray.init(include_dashboard=False, **options)
        except Exception as error:
            # Ray has no type for it, and no way to wait for longer than half a minute.
            if "timed out during startup" not in str(error) or attempt + 1 == START_ATTEMPTS:
                raise
            ray.shutdown()
        else:
            return


def _check_reachable(address: str) -> None:
    """Refuse an address that nothing listens at: Ray itself tries for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not separator or not port.isdigit():
        raise ClusterError(
            f"{address!r} is no address of a cluster; write host:6379, or ray://host:10001 for "
            "its client port."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS / 3).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"the cluster at {address!r} cannot be reached ({error}); check the address, and that "
            "`ray status` on its head node answers."
        ) from error


def _connect(start: Callable[[], Any], what: str) -> None:
    """Connect in a thread, as Ray has no limit of its own for whatever listens there.

    A cluster cannot be started so: its processes end with the thread that started them.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 (of any kind: raised below, in words)
            failed.append(error)

    thread = threading.Thread(target=run, name="bitwright-ray", daemon=True)
    thread.start()
    thread.join(2 * CONNECT_SECONDS / 3)  # the rest went into looking whether anybody listens
    if thread.is_alive():
        raise ClusterError(
            f"{what} does not answer; check that a Ray head node runs there, of the same version."
        )
    if failed:
        with _in_words(what):
            raise failed[0]


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except BitwrightError:
        raise
    except Exception as error:
        raise ClusterError(f"{what} cannot be used: {_reason(error)}.") from error


def _reason(error: BaseException, *, last: bool = False) -> str:
    """Return the first line of what an error says, or the last: Ray puts the cause there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1 if last else 0][:200].rstrip(".")


def all_nodes_see(ray: Any, paths: Sequence[str]) -> bool:
    """Whether each machine of a cluster has files and folders as this one has them."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(_look_at)
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
            found.append(look.options(**options).remote(list(paths)))
    try:
        here = _look_at(paths)
        return all(there == here for there in ray.get(found, timeout=START_SECONDS))
    except ray.exceptions.RayError:
        return False  # one that dies, or does not answer: what is read here reaches all others


def _look_at(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return the size and the time of each file or folder; None where it is not there."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            facts = Path(path).stat()
        except OSError:
            found.append(None)
        else:
            found.append((facts.st_size, facts.st_mtime_ns))
    return found


class KeptParts(Protocol):
    """Where parts of a merged result are kept, so that a run that was killed goes on from them."""

    def __contains__(self, number: object) -> bool:
        """Whether this part is there."""

    def get(self, number: int) -> Any:
        """Return a part."""

    def put(self, number: int, part: Any) -> None:
        """Keep a part: all of it, or nothing."""


class _Worker:
    """What runs on the cluster: makes its function once, then applies it to item after item."""

    def __init__(self, make: Callable[..., Callable[[Any], Any]], shared: Sequence[Any]) -> None:
        self._make, self._shared = make, shared
        self._function: Callable[[Any], Any] | None = None
        limit_threads(1)  # it has one CPU, and others are beside it

    def ready(self) -> None:
        """Answer, which means that this process has started."""

    def run(self, item: Any) -> tuple[bool, Any]:
        """Return a sign that it is done, and the result, which can stay on this machine."""
        if self._function is None:
            import ray

            self._function = self._make(*(ray.get(ref) for ref in self._shared))
        found = self._function(item)
        return True, list(found) if isinstance(found, Iterator) else found


@dataclass(slots=True)
class _Group:
    """Items whose results are merged."""

    number: int
    items: list[Any] = field(default_factory=list)
    """References to them, kept until the group is merged: a machine that dies takes results."""
    parts: dict[int, Any] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    """Items that were done, if only to be lost again."""
    closed: bool = False
    deaths: int = 0

    @property
    def is_complete(self) -> bool:
        return self.closed and len(self.parts) == len(self.items)


class ClusterWorkers(Closing):
    """Applies a function, which each worker makes of shared values, to items on a cluster.

    `make` is a function of a module, called once per worker with the shared values, which are sent
    to each machine once. Workers start with the first items, and stay until this is closed.
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
        self._ray, self._make, self._shard = ray, make, shard
        errors = ray.exceptions
        self._lost = (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RaySystemError,
        )
        with self._in_words():
            self._shared = [ray.put(value) for value in shared]
            self._count = count or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._actor = ray.remote(_Worker).options(num_cpus=1, scheduling_strategy="SPREAD")
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[_Group, int, Any, Any]] = {}
        self._merging: dict[Any, _Group] = {}
        self._again: deque[tuple[_Group, int]] = deque()

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item, in their order."""
        waiting: dict[int, Any] = {}
        first = 0
        for number, result in self._gather(items, None, 1, ahead=AHEAD * self._count):
            waiting[number] = result
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
        sent = 0

        def shards() -> Iterator[Any]:
            nonlocal sent
            for shard in self._shards(samples):
                sent += len(shard)
                yield shard

        parts: dict[int, Any] = {}
        gathered = self._gather(
            shards(),
            merge,
            FAN_IN,
            on_done=lambda done: on_done(min(done * self._shard, sent)),
            kept=kept,
        )
        for number, part in gathered:
            parts[number] = part
        found = [parts[number] for number in range(len(parts))]
        while len(found) > 1:  # a tree, too: a long list is not copied for each of its parts
            pairs = zip(found[::2], [*found[1::2], None], strict=False)
            found = [one if other is None else merge(one, other) for one, other in pairs]
        return found[0] if found else None

    def close(self) -> None:
        """Stop the workers."""
        self._stop([*self._starting.values(), *self._idle])
        self._starting, self._idle = {}, []
        self._stop_running()

    def _shards(self, samples: Iterable[Any]) -> Iterator[Any]:
        iterator = iter(samples)
        while shard := list(islice(iterator, self._shard)):
            yield shard

    def _gather(
        self,
        items: Iterable[Any],
        merge: Callable[[Any, Any], Any] | None,
        size: int,
        *,
        on_done: Callable[[int], None] = lambda done: None,
        ahead: int | None = None,
        kept: KeptParts | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the merged results of groups of so many items, with their numbers, as they come.

        No group is begun that is so many `ahead` of the first that is not there yet.
        """
        try:
            with self._in_words():
                yield from self._work(items, merge, size, on_done, ahead, kept)
        finally:
            self._stop_running()

    def _work(
        self,
        items: Iterable[Any],
        merge: Callable[[Any, Any], Any] | None,
        size: int,
        on_done: Callable[[int], None],
        ahead: int | None,
        kept: KeptParts | None,
    ) -> Iterator[tuple[int, Any]]:
        rest = iter(items)
        first = list(islice(rest, self._count))
        if not first:
            return
        self._start_workers(len(first))
        source = chain(first, rest)
        group: _Group | None = None
        groups = done = 0
        open_groups: set[int] = set()
        exhausted = False
        # Without a CPU of its own: the workers may hold all there are.
        combine = self._ray.remote(_merge_all).options(num_cpus=0)
        began = time.monotonic()
        while True:
            while self._idle and (self._again or not exhausted):
                if self._again:
                    self._submit(*self._again.popleft())
                    continue
                if ahead is not None and open_groups and groups - min(open_groups) >= ahead:
                    break
                item = next(source, _END)
                if item is _END:
                    exhausted = True
                    if group is not None and not group.closed:
                        if group.number not in open_groups:
                            raise DataError(
                                "there are fewer samples than in the run that is to go on; delete "
                                "its folder, or name another one."
                            )
                        group.closed = True
                        self._finish(group, merge, combine)
                    break
                if group is None or group.closed:
                    group = _Group(groups)
                    groups += 1
                    if kept is None or group.number not in kept:
                        open_groups.add(group.number)
                if group.number not in open_groups:  # a run before did this one
                    group.parts[len(group.items)] = None
                    group.items.append(None)
                    group.closed = len(group.items) == size
                    done += 1
                    on_done(done)
                    if group.closed:
                        assert kept is not None
                        yield group.number, kept.get(group.number)
                    continue
                group.items.append(self._ray.put(item))
                group.closed = len(group.items) == size
                self._submit(group, len(group.items) - 1)
            if exhausted and not self._running and not self._merging and not self._again:
                return
            waiting = [*self._running, *self._merging, *self._starting]
            ready, _ = self._ray.wait(waiting, num_returns=1, timeout=1.0)
            if not ready:
                self._check_started(began)
                continue
            reference = ready[0]
            if reference in self._starting:
                if self._greet(reference):
                    began = time.monotonic()
            elif reference in self._merging:
                finished = self._merging.pop(reference)
                try:
                    result = self._get(reference)
                except self._lost:
                    finished.parts.clear()
                    self._redo(finished, range(len(finished.items)), "a machine")
                    continue
                finished.items.clear()
                open_groups.discard(finished.number)
                if kept is not None and finished.closed and len(finished.counted) == size:
                    kept.put(finished.number, result)
                yield finished.number, result
            else:
                owner, position, worker, part = self._running.pop(reference)
                try:
                    self._get(reference)
                except self._lost:
                    self._stop([worker])
                    self._start_worker()
                    began = time.monotonic()
                    self._redo(owner, [position], "a worker")
                    continue
                self._idle.append(worker)
                done += position not in owner.counted
                owner.counted.add(position)
                owner.parts[position] = part
                on_done(done)
                self._finish(owner, merge, combine)

    def _start_workers(self, wanted: int) -> None:
        """Start as many workers as there are items for, beside those that there are."""
        for _ in range(wanted - len(self._idle) - len(self._starting)):
            self._start_worker()

    def _submit(self, group: _Group, position: int) -> None:
        worker = self._idle.pop()
        status, part = worker.run.options(num_returns=2).remote(group.items[position])
        self._running[status] = group, position, worker, part

    def _finish(self, group: _Group, merge: Any, combine: Any) -> None:
        """Let a complete group be merged where its parts are."""
        if not group.is_complete:
            return
        parts = [group.parts[position] for position in sorted(group.parts)]
        merged = parts[0] if len(parts) == 1 else combine.remote(merge, *parts)
        self._merging[merged] = group

    def _redo(self, group: _Group, positions: Iterable[int], who: str) -> None:
        group.deaths += 1
        if group.deaths >= MAX_DEATHS:
            raise ClusterError(
                f"{group.deaths} workers died over the same samples (shard {group.number}); see "
                "the cluster's logs: they may need more memory, or smaller shards."
            )
        warn_user(f"{who} of the cluster died; shard {group.number} is done again by another one.")
        self._again.extend((group, position) for position in positions)

    def _start_worker(self) -> None:
        worker = self._actor.remote(self._make, self._shared)
        self._starting[worker.ready.remote()] = worker

    def _greet(self, reference: Any) -> bool:
        """Take a worker that has started; one that failed to is replaced, a few times."""
        worker = self._starting.pop(reference)
        try:
            self._get(reference)
        except self._lost as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise ClusterError(
                    f"the workers of the cluster do not start ({_reason(error, last=True)}); "
                    "check that bitwright is installed on its machines, in the same version."
                ) from error
            self._start_worker()
            return False
        self._failed_starts = 0
        self._idle.append(worker)
        return True

    def _check_started(self, began: float) -> None:
        nobody = not self._idle and not self._running and not self._merging
        if nobody and time.monotonic() - began > START_SECONDS:
            raise ClusterError(
                "no worker of the cluster has started; check that it has a free CPU, and that "
                "bitwright is installed on its machines."
            )

    def _stop_running(self) -> None:
        """Stop the workers whose results nobody waits for any more."""
        self._stop([entry[2] for entry in self._running.values()])
        self._running, self._merging = {}, {}
        self._again.clear()

    def _stop(self, workers: Iterable[Any]) -> None:
        for worker in workers:
            with suppress(self._ray.exceptions.RayError, ConnectionError):
                self._ray.kill(worker)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Tell in a sentence what Ray says when the cluster itself is gone."""
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise ClusterError(f"the cluster is lost: {_reason(error)}.") from error

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, self._lost):
                raise cause from None
            # What failed there fails here as it would in this process.
            if isinstance(cause, Exception):
                raise cause from None
            raise ClusterError(f"a worker failed: {_reason(error, last=True)}.") from None


_END = object()


def _merge_all(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    merged = parts[0]
    for part in parts[1:]:
        merged = merge(merged, part)
    return merged
