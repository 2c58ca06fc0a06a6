"""Engines of observation: this process, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bitwright.errors import DataError, MissingPackageError
from bitwright.observe.observer import MEMORY_BUDGET, Feeds, Observation, as_runner, observe

__all__ = ["LocalEngine", "RayEngine"]


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


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Observes on a Ray cluster: shards of the samples go to workers, their sketches merge.

    The counts are those of a local pass; the order of batches (which a moving average depends
    on) is kept too. Needs `pip install 'bitwright[ray]'`; starts a local cluster when none is
    connected.

    >>> RayEngine(workers=4).workers
    4
    """

    workers: int = 2
    shard: int = 8
    """Samples that are sent to a worker at a time."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.shard < 1:
            raise DataError("RayEngine needs at least one worker, and one sample in each shard.")

    def observe(
        self, model: Any, tensors: Sequence[str], samples: Iterable[Feeds], **options: Any
    ) -> Observation:
        """Do what `bitwright.observe.observe` does, on the cluster."""
        try:
            import ray
        except ImportError as error:
            raise MissingPackageError(
                "observing on a cluster needs ray; run: pip install 'bitwright[ray]'."
            ) from error
        progress = options.pop("progress", False)
        own_cluster = not ray.is_initialized()
        if own_cluster:
            ray.init(log_to_driver=False, include_dashboard=False)
        actor = ray.remote(_Worker)
        stored = ray.put(_serialized(model))
        workers = [actor.remote(stored, list(tensors), options) for _ in range(self.workers)]
        free = list(workers)
        running: dict[Any, tuple[int, Any]] = {}
        parts: dict[int, Observation] = {}
        done = 0

        def collect() -> None:
            nonlocal done
            ready, _ = ray.wait(list(running), num_returns=1)
            index, worker = running.pop(ready[0])
            parts[index] = ray.get(ready[0])
            free.append(worker)
            done += parts[index].samples
            if callable(progress):
                progress(done, None)

        try:
            for index, shard in enumerate(_shards(samples, self.shard)):
                if not free:
                    collect()
                worker = free.pop()
                running[worker.observe.remote(shard)] = index, worker
            while running:
                collect()
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        finally:
            for worker in workers:
                ray.kill(worker)
            if own_cluster:
                ray.shutdown()
        if not parts:
            raise DataError("there is no calibration data: not a single sample came.")
        merged = Observation()
        for index in sorted(parts):
            merged |= parts[index]
        return merged


class _Worker:
    """One actor: holds the model and its sessions, observes the shards that it is sent."""

    def __init__(self, model: Any, tensors: Sequence[str], options: dict[str, Any]) -> None:
        budget = options.pop("memory_budget", MEMORY_BUDGET)
        self._runner = as_runner(model, tensors, budget, options.pop("providers", None))
        self._tensors = tensors
        self._options = options

    def observe(self, shard: list[Feeds]) -> Observation:
        return observe(self._runner, self._tensors, shard, progress=False, **self._options)


def _shards(samples: Iterable[Feeds], size: int) -> Iterator[list[Feeds]]:
    iterator = iter(samples)
    while shard := list(islice(iterator, size)):
        yield shard


def _serialized(model: Any) -> Any:
    """Return the model as something that travels; a path must be there on every machine."""
    import onnx_ir as ir

    from bitwright.graph import clone_model

    if not isinstance(model, ir.Model):
        return model
    # External tensors know their folder only in this process, so they are sent along.
    return ir.to_proto(ir.external_data.load_to_model(clone_model(model)))
