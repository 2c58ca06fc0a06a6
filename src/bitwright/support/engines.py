"""Engines: where the work of a job runs, in this process or on a Ray cluster.

A job opens workers with a function that is made once for each of them, of values that are sent to
each machine once, and gives them items or samples. Results come in the order of what was given, so
that they are the same for any engine and any number of workers:

    with engine.open(make, model, options) as workers:
        for result in workers.map(items): ...

`make(model, options)` returns the function: of one item for `map`, of an iterable of samples for
`stream` (one result for each sample) and `reduce` (one for all of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bitwright.errors import ArgumentError, DataError
from bitwright.support.cluster import ClusterWorkers, KeptParts
from bitwright.support.cluster_connection import all_nodes_see, open_cluster

__all__ = ["LOCAL", "Engine", "KeptParts", "LocalEngine", "RayEngine", "Workers", "open_engine"]

Make = Callable[..., Callable[[Any], Any]]


class Workers(Protocol):
    """What applies the function that was made."""

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result for each item, in their order."""

    def stream(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield the result for each sample, in their order."""

    def reduce(
        self,
        samples: Iterable[Any],
        merge: Callable[[Any, Any], Any],
        *,
        on_done: Callable[[int], None] = ...,
        kept: KeptParts | None = None,
    ) -> Any:
        """Return the results for parts of the samples, merged; None where there is no sample.

        `on_done` hears how many samples are done, `kept` has parts of a run before.
        """


class _LocalWorkers:
    """This process, as workers."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        return map(self._function, items)

    def stream(self, samples: Iterable[Any]) -> Iterator[Any]:
        return iter(self._function(samples))

    def reduce(
        self,
        samples: Iterable[Any],
        merge: Callable[[Any, Any], Any],
        *,
        on_done: Callable[[int], None] = lambda done: None,
        kept: KeptParts | None = None,
    ) -> Any:
        count = 0

        def counted() -> Iterator[Any]:
            nonlocal count
            for sample in samples:
                yield sample
                count += 1
                on_done(count)

        found = self._function(counted())
        return found if count else None


@runtime_checkable
class Engine(Protocol):
    """Where work runs: in this process, unless a class says otherwise."""

    @property
    def is_local(self) -> bool:
        """Whether that is this process."""
        return True

    def connect(self) -> AbstractContextManager[Any]:
        """Return what keeps a connection for all that is opened within it."""
        return nullcontext()

    def sees(self, paths: Sequence[str]) -> bool:
        """Whether all its machines have these files, or folders, as this one has them."""
        return True

    def open(self, make: Make, *shared: Any) -> AbstractContextManager[Workers]:
        """Return workers, each with what `make` makes of the shared values."""
        return nullcontext(_LocalWorkers(make(*shared)))


@dataclass(frozen=True)
class LocalEngine(Engine):
    """Works in this process, which is what happens when no engine is given."""


LOCAL = LocalEngine()


@dataclass(frozen=True)
class RayEngine(Engine):
    """Works on a Ray cluster: shards of samples, and tasks, go to workers on its machines.

    The result is that of a local run, to the bit, for any number of workers. A worker or machine
    that dies is replaced, and what it had is done again, with a warning. Functions that workers are
    opened with are functions of a module. Needs `pip install 'bitwright[ray]'`.
    """

    workers: int | None = None
    """Processes, each on a CPU of the cluster; None: as many as it has CPUs."""
    shard: int = 8
    """Samples that are sent to a worker at a time."""
    address: str | None = None
    """`"host:6379"`, `"ray://host:10001"` for a client outside of the cluster, or `"auto"` on one
    of its machines. None: what the program is connected to, `RAY_ADDRESS`, or a new local one."""

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or self.shard < 1:
            raise DataError("RayEngine needs at least one worker, and one sample in each shard.")

    @property
    def is_local(self) -> bool:
        """Whether work runs in this process."""
        return False

    def connect(self) -> AbstractContextManager[Any]:
        """Return what connects to the cluster, or starts one."""
        return open_cluster(self.address)

    def sees(self, paths: Sequence[str]) -> bool:
        """Ask each machine of the cluster for the files."""
        with self.connect() as ray:
            return all_nodes_see(ray, paths)

    @contextmanager
    def open(self, make: Make, *shared: Any) -> Iterator[Workers]:
        """Send the shared values to the cluster; workers start with the first items."""
        with (
            self.connect() as ray,
            ClusterWorkers(ray, make, shared, count=self.workers, shard=self.shard) as workers,
        ):
            yield workers


def open_engine(engine: Engine | str | None) -> Engine:
    """Return the engine that a text names: `"local"`, `"ray"`, or `"ray://host:port"`.

    >>> open_engine("ray://head:10001")
    RayEngine(workers=None, shard=8, address='ray://head:10001')
    >>> open_engine("spark")
    Traceback (most recent call last):
    bitwright.errors.ArgumentError: 'spark' is no engine; write local, ray, or ray://host:port.
    """
    if engine is None or engine == "local":
        return LOCAL
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        return RayEngine()
    if engine == "ray://auto":
        return RayEngine(address="auto")
    if engine.startswith("ray://"):
        return RayEngine(address=engine)
    raise ArgumentError(f"{engine!r} is no engine; write local, ray, or ray://host:port.")
