"""Work on a Ray cluster: items go to workers, what dies is replaced and its item done again.

Workers are actors, which hold what is expensive to make (sessions) from item to item. Results come
in the order of the items, whoever made them, and are the same for any number of workers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bitwright.errors import ClusterError, MissingPackageError
from bitwright.support.notices import warn_user

__all__ = ["ClusterWork", "open_cluster"]

CONNECT_SECONDS = 30.0
"""How long to wait for a cluster to answer."""
START_SECONDS = 180.0
"""How long to wait for a first worker: a new machine imports for a while."""
START_ATTEMPTS = 3
"""How often to start a cluster on a machine that is too busy for it."""
MAX_DEATHS = 4
"""Workers that may die over one item before it is taken for the reason."""
FAN_IN = 8
"""Results that are merged at a time, by a worker, before they travel."""


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
        yield ray
    finally:
        ray.shutdown()


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
    thread.join(CONNECT_SECONDS)
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
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ClusterError(f"{what} cannot be used: {reason.rstrip('.')}.") from error


class _Worker:
    """What runs on the cluster: makes its function once, then applies it to item after item."""

    def __init__(self, make: Callable[..., Callable[[Any], Any]], shared: Sequence[Any]) -> None:
        self._make, self._shared = make, shared
        self._function: Callable[[Any], Any] | None = None

    def ready(self) -> None:
        """Answer, which means that this process has started."""

    def run(self, item: Any) -> tuple[bool, Any]:
        """Return a sign that it is done, and the result, which can stay on this machine."""
        if self._function is None:
            import ray

            self._function = self._make(*(ray.get(ref) for ref in self._shared))
        return True, self._function(item)


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


class ClusterWork:
    """Applies a function, which each worker makes of shared values, to items on a cluster.

    `make` is a function of a module, called once per worker with the shared values, which are sent
    to each machine once.
    """

    def __init__(
        self,
        ray: Any,
        make: Callable[..., Callable[[Any], Any]],
        shared: Sequence[Any],
        workers: int | None = None,
    ) -> None:
        self._ray = ray
        self._shared = [ray.put(value) for value in shared]
        self._make = make
        self._actor = ray.remote(_Worker).options(num_cpus=1, scheduling_strategy="SPREAD")
        self._count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[_Group, int, Any, Any]] = {}
        self._merging: dict[Any, _Group] = {}
        self._again: deque[tuple[_Group, int]] = deque()
        errors = ray.exceptions
        self._lost = (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.RaySystemError,
        )

    def map(self, items: Iterable[Any], on_done: Callable[[int], None]) -> list[Any]:
        """Return the result of each item; `on_done` gets how many there are."""
        return self._gather(items, None, 1, on_done)

    def reduce(
        self,
        items: Iterable[Any],
        merge: Callable[[Any, Any], Any],
        on_done: Callable[[int], None],
    ) -> Any:
        """Return all results merged, None where there is no item.

        Neighbours are merged first, on the cluster, so that `merge` need not commute and one in
        eight results travels here.
        """
        found = self._gather(items, merge, FAN_IN, on_done)
        while len(found) > 1:  # a tree, too: a long list is not copied for each of its parts
            pairs = zip(found[::2], [*found[1::2], None], strict=False)
            found = [one if other is None else merge(one, other) for one, other in pairs]
        return found[0] if found else None

    def close(self) -> None:
        """Stop the workers."""
        busy = [entry[2] for entry in self._running.values()]
        for worker in [*self._starting.values(), *self._idle, *busy]:
            self._ray.kill(worker)

    def _gather(
        self,
        items: Iterable[Any],
        merge: Callable[[Any, Any], Any] | None,
        size: int,
        on_done: Callable[[int], None],
    ) -> list[Any]:
        source = iter(items)
        results: dict[int, Any] = {}
        group: _Group | None = None
        groups = done = 0
        exhausted = False
        # Without a CPU of its own: the workers may hold all there are.
        combine = self._ray.remote(_merge_all).options(num_cpus=0)
        for _ in range(self._count):
            self._start_worker()
        began = time.monotonic()
        while True:
            while self._idle and (self._again or not exhausted):
                if self._again:
                    self._submit(*self._again.popleft())
                    continue
                item = next(source, _END)
                if item is _END:
                    exhausted = True
                    if group is not None:
                        group.closed = True
                        self._finish(group, merge, combine)
                    break
                if group is None or group.closed:
                    group = _Group(groups)
                    groups += 1
                group.items.append(self._ray.put(item))
                group.closed = len(group.items) == size
                self._submit(group, len(group.items) - 1)
            if exhausted and not self._running and not self._merging and not self._again:
                return [results[number] for number in range(groups)]
            waiting = [*self._running, *self._merging, *self._starting]
            ready, _ = self._ray.wait(waiting, num_returns=1, timeout=1.0)
            if not ready:
                self._check_started(began)
                continue
            reference = ready[0]
            if reference in self._starting:
                self._greet(reference)
                began = time.monotonic()
            elif reference in self._merging:
                finished = self._merging.pop(reference)
                try:
                    results[finished.number] = self._get(reference)
                except self._lost:
                    finished.parts.clear()
                    self._redo(finished, range(len(finished.items)), "a machine")
                else:
                    finished.items.clear()
            else:
                owner, position, worker, part = self._running.pop(reference)
                try:
                    self._get(reference)
                except self._lost:
                    self._kill(worker)
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

    def _greet(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            self._get(reference)
        except self._lost:
            self._start_worker()
        else:
            self._idle.append(worker)

    def _check_started(self, began: float) -> None:
        nobody = not self._idle and not self._running and not self._merging
        if nobody and time.monotonic() - began > START_SECONDS:
            raise ClusterError(
                "no worker of the cluster has started; check that it has a free CPU, and that "
                "bitwright is installed on its machines."
            )

    def _kill(self, worker: Any) -> None:
        self._ray.kill(worker)

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, self._lost):
                raise cause from None
            # What failed there fails here as it would in this process.
            raise (cause if isinstance(cause, Exception) else ClusterError(str(error))) from None


_END = object()


def _merge_all(merge: Callable[[Any, Any], Any], *parts: Any) -> Any:
    merged = parts[0]
    for part in parts[1:]:
        merged = merge(merged, part)
    return merged
