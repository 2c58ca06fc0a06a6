"""Engines of observation: this process, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from operator import or_
from typing import Any

from bitwright.errors import ArgumentError, ClusterError, DataError
from bitwright.observe.observer import MEMORY_BUDGET, Engine, Feeds, Observation, as_runner, observe
from bitwright.support.cluster import ClusterWork, open_cluster
from bitwright.support.progress import show_progress

__all__ = ["LocalEngine", "RayEngine", "open_engine"]

_MESSAGE_LIMIT = 1_900_000_000
"""Bytes of a model that travels as one message (protobuf ends at 2 GB)."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Observes in this process; what `observe` does when no engine is given.

    >>> LocalEngine()
    LocalEngine()
    """

    def observe(
        self, model: Any, tensors: Sequence[str], samples: Iterable[Feeds], **options: Any
    ) -> Observation:
        """Do what `bitwright.observe.observe` does."""
        return observe(model, tensors, samples, **options)

    def map(
        self,
        make: Callable[..., Callable[[Any], Any]],
        shared: Sequence[Any],
        items: Iterable[Any],
        on_done: Callable[[int], None] = lambda done: None,
    ) -> list[Any]:
        """Apply what `make` makes of the shared values to each item.

        >>> LocalEngine().map(lambda base: lambda x: base + x, [10], [1, 2])
        [11, 12]
        """
        function = make(*shared)
        results = []
        for item in items:
            results.append(function(item))
            on_done(len(results))
        return results


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Observes on a Ray cluster: shards of the samples go to workers, their sketches merge.

    The result is that of a local pass, to the bit, for any number of workers: the order of batches
    (which a moving average depends on) is kept, too. A worker or machine that dies is replaced, and
    what it had is done again, with a warning. Needs `pip install 'bitwright[ray]'`.

    >>> RayEngine(workers=4).workers
    4
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

    def observe(
        self, model: Any, tensors: Sequence[str], samples: Iterable[Feeds], **options: Any
    ) -> Observation:
        """Do what `bitwright.observe.observe` does, on the cluster."""
        progress = options.pop("progress", False)
        total = len(samples) if isinstance(samples, Sized) else getattr(samples, "len_hint", None)
        sent = 0

        def shards() -> Iterator[list[Feeds]]:
            nonlocal sent
            iterator = iter(samples)
            while shard := list(islice(iterator, self.shard)):
                sent += len(shard)
                yield shard

        shared = (_serialized(model), list(tensors), options)
        with (
            open_cluster(self.address) as ray,
            show_progress(progress, "Observing", total) as report,
        ):
            work = ClusterWork(ray, _observer, shared, self.workers)
            try:
                merged = work.reduce(shards(), or_, lambda n: report(min(n * self.shard, sent)))
            finally:
                work.close()
        if merged is None:
            raise DataError("there is no calibration data: not a single sample came.")
        found: Observation = merged
        return found

    def map(
        self,
        make: Callable[..., Callable[[Any], Any]],
        shared: Sequence[Any],
        items: Iterable[Any],
        on_done: Callable[[int], None] = lambda done: None,
    ) -> list[Any]:
        """Apply what `make`, a function of a module, makes of the shared values to each item."""
        with open_cluster(self.address) as ray:
            work = ClusterWork(ray, make, shared, self.workers)
            try:
                return work.map(items, on_done)
            finally:
                work.close()


def open_engine(engine: Engine | str | None) -> Engine | None:
    """Return the engine that a text names: `"local"`, `"ray"`, or `"ray://host:port"`.

    >>> open_engine("ray://head:10001")
    RayEngine(workers=None, shard=8, address='ray://head:10001')
    >>> open_engine("spark")
    Traceback (most recent call last):
    bitwright.errors.ArgumentError: 'spark' is no engine; write local, ray, or ray://host:port.
    """
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return None
    if engine == "ray":
        return RayEngine()
    if engine == "ray://auto":
        return RayEngine(address="auto")
    if engine.startswith("ray://"):
        return RayEngine(address=engine)
    raise ArgumentError(f"{engine!r} is no engine; write local, ray, or ray://host:port.")


def _observer(
    model: Any, tensors: Sequence[str], options: dict[str, Any]
) -> Callable[[list[Feeds]], Observation]:
    """Return what observes shard after shard with the same sessions."""
    options = dict(options)
    budget = options.pop("memory_budget", MEMORY_BUDGET)
    runner = as_runner(model, tensors, budget, options.pop("providers", None))
    return lambda shard: observe(runner, tensors, shard, progress=False, **options)


def _serialized(model: Any) -> Any:
    """Return the model as something that travels; a path must be there on every machine."""
    import onnx_ir as ir

    from bitwright.graph import clone_model, serialized_size
    from bitwright.graph.cloning import to_message

    if not isinstance(model, ir.Model):
        return model
    size = serialized_size(model)
    if size > _MESSAGE_LIMIT:
        raise ClusterError(
            f"the model takes {size / 1e9:.1f} GB, and 2 can be sent to a cluster; observe it in "
            "this process, without an engine."
        )
    # External tensors know their folder only in this process, so they are sent along.
    return to_message(ir.external_data.load_to_model(clone_model(model)))
