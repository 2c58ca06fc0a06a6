"""One streaming pass over the data: run the model, sketch every observed tensor, forget it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import or_
from typing import Any, Literal, Protocol, TypedDict, Unpack, get_args, runtime_checkable

from bitwright.data import read_samples
from bitwright.errors import DataError, did_you_mean
from bitwright.graph import carried_model, carry_model
from bitwright.numerics.positions import PositionGrid
from bitwright.observe.sketch import TensorSketch
from bitwright.support import LOCAL, Array, Engine, KeptParts, Progress, show_progress

Detail = Literal["extremes", "thinned", "histogram"]
Feeds = Mapping[str, Array]

THINNED = 1 << 15
"""About how many values of a tensor a thinned histogram counts in each sample."""
COUNTED = 1 << 20
"""About how many values of a tensor a histogram counts in all samples, where it is known how many
these are: more make no range more exact. Each sample counts its share, so that parts of the samples
merge to the same; extremes are those of all values."""
LEAST_COUNTED = 64
"""Values of a tensor that are counted in each sample, however many samples there are."""
MEMORY_BUDGET = 512 << 20
"""Bytes of observed tensors that may be alive at once, where no budget is given."""


@runtime_checkable
class Runner(Protocol):
    """What runs the model. `SessionRunner` is the usual one; tests bring their own."""

    def groups(self, feeds: Feeds) -> Iterable[tuple[str, ...]]:
        """Return the tensors to observe, cut into groups that fit in memory for this sample."""

    def run(self, group: tuple[str, ...], feeds: Feeds) -> Mapping[str, Array]:
        """Return the value of each tensor of a group for this sample."""


@dataclass(slots=True)
class Observation:
    """What was seen: a sketch for each tensor. Observations of parts of the data merge with `|`."""

    sketches: dict[str, TensorSketch] = field(default_factory=dict)
    samples: int = 0
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shape of each tensor in the first sample that has it."""

    def __or__(self, other: Observation) -> Observation:
        if not isinstance(other, Observation):
            return NotImplemented
        sketches = dict(self.sketches)
        for name, sketch in other.sketches.items():
            sketches[name] = sketches[name] | sketch if name in sketches else sketch
        return Observation(
            sketches=sketches,
            samples=self.samples + other.samples,
            shapes={**other.shapes, **self.shapes},
        )


class SketchOptions(TypedDict, total=False):
    """What a pass keeps of each tensor besides its extremes."""

    detail: Detail
    """Nothing more, or the histogram that range methods need: of a million values, or of a smaller
    part of large tensors ("thinned"), which costs little beside running the model."""
    sample_count: int | None
    """How many samples there are in all, where they are more than those that are given."""
    per_channel: Mapping[str, int] | None
    """Tensors that also get extremes for each channel, with the channel axis."""
    per_batch: Mapping[str, Sequence[PositionGrid]] | None
    """Tensors of which is counted how many samples each power-of-two scale is best for."""
    means: Mapping[str, int] | None
    """Tensors that also get the mean of each channel, with the channel axis."""


def observe(
    model: Any,
    tensors: Sequence[str],
    samples: Iterable[Feeds],
    *,
    memory_budget: int = MEMORY_BUDGET,
    providers: Sequence[str] | None = None,
    progress: Progress = True,
    engine: Engine = LOCAL,
    kept: KeptParts | None = None,
    **options: Unpack[SketchOptions],
) -> Observation:
    """Run the model over the samples, once, and sketch the named tensors.

    `model` is a model or a `Runner`. `memory_budget` bounds the bytes of observed tensors that
    are alive at any time: if one sample's do not fit, they are observed in groups, one run for
    each group. `providers` are the runtime's execution providers. `progress` shows a bar on a
    terminal, or calls a function with (done, total). `engine` says where all of it runs; a cluster
    goes on from the parts that are `kept`. Non-finite values raise nothing here.
    """
    detail = options.get("detail", "histogram")
    if detail not in get_args(Detail):
        raise DataError(f"unknown detail {detail!r}.{did_you_mean(detail, get_args(Detail))}")
    if memory_budget <= 0:
        raise DataError(f"the memory budget must be positive, not {memory_budget} bytes.")
    if not tensors:
        return Observation()
    options.setdefault("sample_count", _count(samples))
    if not engine.is_local:
        shared = {**options, "memory_budget": memory_budget, "providers": providers}
        return _observe_on(engine, model, tensors, samples, shared, progress, kept)
    sketches = {name: _new_sketch(name, options) for name in tensors}
    runner = as_runner(model, tensors, memory_budget, providers)
    seen = fill_sketches(runner, sketches, samples, progress=progress)
    for sketch in sketches.values():
        sketch.pack()
    return seen


def _new_sketch(name: str, options: SketchOptions) -> TensorSketch:
    detail, samples = options.get("detail", "histogram"), options.get("sample_count")
    most = None if not samples else max(COUNTED // samples, LEAST_COUNTED)
    return TensorSketch(
        histogram=detail != "extremes",
        channel_axis=(options.get("per_channel") or {}).get(name),
        mean_axis=(options.get("means") or {}).get(name),
        grids=(options.get("per_batch") or {}).get(name, ()),
        most_counted=THINNED if detail == "thinned" else most,
    )


def _count(samples: Iterable[Feeds]) -> int | None:
    return len(samples) if isinstance(samples, Sized) else getattr(samples, "len_hint", None)


def fill_sketches(
    runner: Runner,
    sketches: Mapping[str, TensorSketch],
    samples: Iterable[Feeds],
    *,
    progress: Progress = True,
) -> Observation:
    """Update sketches, whatever their kind, with what the model computes for the samples."""
    seen = Observation(sketches=dict(sketches))
    if not sketches:
        return seen
    total = _count(samples)
    # One set of tensors is sketched in a thread while the next is computed: the sketch loops and
    # ONNX Runtime both release the interpreter lock. Never more than two sets are in memory. After
    # an error (or Ctrl-C) the set in progress, a fraction of a second, is finished.
    with (
        show_progress(progress, "Observing", total) as report,
        ThreadPoolExecutor(1, thread_name_prefix="bitwright-sketch") as pool,
    ):
        pending: Future[None] | None = None
        for feeds in samples:
            for group in runner.groups(feeds):
                values = runner.run(group, feeds)
                if pending is not None:
                    pending.result()
                pending = pool.submit(_sketch, seen, values)
            seen.samples += 1
            report(seen.samples)
        if pending is not None:
            pending.result()
    if not seen.samples:
        raise DataError("there is no calibration data: not a single sample came.")
    return seen


def _observe_on(
    engine: Engine,
    model: Any,
    tensors: Sequence[str],
    samples: Iterable[Feeds],
    options: Mapping[str, Any],
    progress: Progress,
    kept: KeptParts | None,
) -> Observation:
    """Observe shards of the samples on a cluster, and merge what was seen of them."""
    total = _count(samples)
    with (
        engine.open(_shard_observer, carry_model(model), list(tensors), options) as workers,
        show_progress(progress, "Observing", total) as report,
    ):
        found: Observation | None = workers.reduce(samples, or_, on_done=report, kept=kept)
    if found is None:
        raise DataError("there is no calibration data: not a single sample came.")
    return found


def _shard_observer(
    model: Any, tensors: Sequence[str], options: Mapping[str, Any]
) -> Callable[[Iterable[Feeds]], Observation]:
    """Return what observes shard after shard with the same sessions."""
    given = dict(options)
    budget, providers = given.pop("memory_budget"), given.pop("providers")
    runner = as_runner(carried_model(model), tensors, budget, providers)
    return lambda shard: observe(runner, tensors, read_samples(shard), progress=False, **given)


def as_runner(
    model: Any, tensors: Sequence[str], memory_budget: int, providers: Sequence[str] | None = None
) -> Runner:
    """Return what runs this model: itself if it is a runner, else sessions of ONNX Runtime."""
    if isinstance(model, Runner):
        return model
    from bitwright.run.part_runner import open_runner

    # Two sets are alive at a time: one being sketched, one being computed.
    return open_runner(model, tensors, group_bytes=max(memory_budget // 2, 1), providers=providers)


def _sketch(seen: Observation, values: Mapping[str, Array]) -> None:
    for name, value in values.items():
        if name not in seen.sketches:  # a runner may know more than was asked for
            continue
        seen.shapes.setdefault(name, value.shape)
        try:
            seen.sketches[name].update(value)
        except DataError as error:
            raise DataError(f"tensor {name!r}: {error}") from error
