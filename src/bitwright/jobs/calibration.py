"""Calibration: the data that ranges are observed on, and what is observed of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.data import (
    HoldoutSplit,
    RandomData,
    Sample,
    Samples,
    TextData,
    Transform,
    cache_samples,
    channels_first_specs,
    open_data,
    paths_of,
    refer_to,
    to_channels_last,
)
from bitwright.data.references import SampleReferences
from bitwright.decide.layout.entries import Layout
from bitwright.decide.layout.placements import placeable_tensors
from bitwright.decide.scales.parameters import grids_per_batch
from bitwright.errors import DataError
from bitwright.jobs.opening import Prepared, input_specs
from bitwright.observe import (
    MEMORY_BUDGET,
    Detail,
    KeptObservations,
    Observation,
    Runner,
    TensorSketch,
    as_runner,
    load_sketches,
    observe,
    save_sketches,
)
from bitwright.prepare import channels_last_inputs
from bitwright.recipe import MeanExtremes, MinMax, MinMSE, NonOverflow, RangeMethod, Recipe
from bitwright.rounding.bias_correction import find_biased_layers, input_axes
from bitwright.support import LOCAL, Engine, Progress, counted, logged

GIVE_DATA = {
    "remedy": "give data (arrays, files, a folder of images, a data reader), or RandomData() to "
    "try things out",
    "command": "give --data PATH (arrays, or a folder of images), or --random-data 8 to try "
    "things out",
}
"""What to do where there are no samples, for a `DataError`."""
EVALUATION_SAMPLES = 8
"""How many samples a result is measured on where none are needed to calibrate."""


Observe = Callable[[Prepared, Layout, "Calibration"], "Calibrated"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The data that ranges are observed on, how to read it, and what is kept of it."""

    data: Any = None
    limit: int | None = None
    transform: Transform = None
    _: KW_ONLY
    memory_budget: int = MEMORY_BUDGET
    progress: Progress = True
    holdout: bool = True
    """Keep some samples out of calibration, to measure the result on."""
    sketches: str | Path | Mapping[str, TensorSketch] | Observe | None = None
    """A file that keeps what was observed, what was observed elsewhere, or what observes it."""
    engine: Engine = LOCAL
    """Where samples are run, and weights rounded and learned."""
    work: str | Path | None = None
    """A folder that keeps parts of what a cluster observed, for a run that is killed."""
    identity: str = ""
    """What tells the data apart from other data, where such a folder is given."""
    kept_random: bool = False
    """Whether `data` are samples that `RandomData` gave."""

    @property
    def is_random(self) -> bool:
        """Whether the data is random numbers."""
        return self.kept_random or isinstance(self.data, RandomData)

    def open(self, model: ir.Model) -> Samples:
        """Return the samples, which are in the layout of the given model, as checked feeds."""
        return to_channels_last(self._read(model), channels_last_inputs(model))

    def refer(self, model: ir.Model) -> Samples | SampleReferences:
        """Return the samples for the engine: where all its machines see the files, only named."""
        paths = [os.path.abspath(path) for path in paths_of(self.data)]  # noqa: PTH100 (a pattern)
        if self.engine.is_local or not paths or not all(map(os.path.exists, paths)):
            return self.open(model)
        channels_last = channels_last_inputs(model)
        found = refer_to(
            self.data,
            channels_first_specs(input_specs(model), channels_last),
            limit=self.limit,
            transform=self.transform,
            channels_last=channels_last,
        )
        if found is None or not self.engine.sees(paths):
            return self.open(model)
        return found

    def split(self, model: ir.Model, *, for_engine: bool = False) -> HoldoutSplit:
        """Return one pass over the samples; the same holdout stays out of it every time."""
        samples = self.refer(model) if for_engine else self.open(model)
        # Of random numbers no sample tells more than another: all that were asked for calibrate.
        keeps = self.holdout and not self.is_random
        return HoldoutSplit(samples) if keeps else HoldoutSplit(samples, most=0)

    def keep(self, model: ir.Model) -> Calibration:
        """Return the same data in a form that two passes can read."""
        kept = cache_samples(self._read(model), max_bytes=self.memory_budget)
        return replace(self, data=kept, limit=None, transform=None, kept_random=self.is_random)

    def _read(self, model: ir.Model) -> Samples:
        specs = channels_first_specs(input_specs(model), channels_last_inputs(model))
        return open_data(self.data, specs, limit=self.limit, transform=self.transform)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The samples that a result is measured on."""

    samples: Sequence[Sample] = ()
    unseen: bool = False
    """Whether nothing was calibrated on them."""

    def __bool__(self) -> bool:
        return bool(self.samples)

    @classmethod
    def of(cls, split: HoldoutSplit) -> Evaluation:
        """Return what a finished pass over the samples left out."""
        return cls(split.evaluation, bool(split.holdout))


NO_SAMPLES = Evaluation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What was observed, on which data, and what is left to measure the result on."""

    sketches: Mapping[str, TensorSketch] = field(default_factory=dict)
    evaluation: Evaluation = NO_SAMPLES
    data: str = "no data"
    """The data, in words."""
    random: bool = False
    """Whether it was random numbers."""


@logged("observe ranges")
def calibrate(prepared: Prepared, layout: Layout, calibration: Calibration) -> Calibrated:
    """Observe what a layout needs: in a pass over the data, or as it was observed before."""
    if not layout.observed:
        return Calibrated(data=f"no data: {_WITHOUT_DATA[prepared.recipe.mode]}")
    stored = calibration.sketches
    if callable(stored):
        return stored(prepared, layout, calibration)
    if isinstance(stored, Mapping):
        return _given_sketches(layout, stored)
    if stored is not None and Path(stored).exists():
        return _stored_sketches(prepared, layout, stored, calibration)
    recipe = prepared.recipe
    found = _observe_layout(
        prepared,
        layout,
        calibration,
        detail=detail_for(recipe, keep=stored is not None),
        means=mean_axes(prepared.model, layout) if recipe.bias_correction == "fast" else {},
        # What is kept is to serve runs that leave other nodes float.
        further=()
        if stored is None
        else placeable_tensors(prepared.model, recipe, keep_float=prepared.keep_float),
    )
    if stored is not None:
        save_sketches(stored, found.sketches, fingerprint=prepared.content_fingerprint)
    return found


_WITHOUT_DATA = {
    "static": "these number types need none",
    "dynamic": "each run measures its own activations",
}


def observe_everything(
    prepared: Prepared, layout: Layout, folds: Sequence[Calibration], *, means: bool
) -> list[Calibrated]:
    """Observe what any range method, and with `means` the correction of biases, need, in each fold.

    Large tensors are counted in part: as exactly as ranges depend on it, in less time.
    """
    axes = mean_axes(prepared.model, layout) if means else {}
    tensors, first = list(dict.fromkeys([*layout.observed, *axes])), folds[0]
    runner = None
    if first.engine.is_local:
        runner = as_runner(prepared.model, tensors, first.memory_budget, prepared.providers)
    return [
        _observe_layout(prepared, layout, fold, detail="thinned", means=axes, runner=runner)
        for fold in folds
    ]


def _observe_layout(
    prepared: Prepared,
    layout: Layout,
    calibration: Calibration,
    *,
    detail: Detail,
    means: Mapping[str, int],
    further: Sequence[str] = (),
    runner: Runner | None = None,
) -> Calibrated:
    return observe_tensors(
        prepared,
        list(dict.fromkeys([*layout.observed, *means, *further])),
        calibration,
        detail=detail,
        per_channel=channel_axes(prepared.recipe, layout),
        per_batch=grids_per_batch(layout, prepared.recipe),
        means=means,
        runner=runner,
    )


def observe_tensors(
    prepared: Prepared,
    tensors: Sequence[str],
    calibration: Calibration,
    *,
    runner: Runner | None = None,
    **options: Any,
) -> Calibrated:
    """Observe tensors in one pass over the calibration data; `runner` has the model open."""
    require_data(prepared.recipe, calibration)
    split = calibration.split(prepared.model, for_engine=True)
    seen: Observation = observe(
        prepared.model if runner is None else runner,
        tensors,
        split,
        memory_budget=calibration.memory_budget,
        providers=prepared.providers,
        engine=calibration.engine,
        kept=_kept_parts(prepared, tensors, calibration, options),
        progress=calibration.progress,
        **options,
    )
    return Calibrated(
        sketches=seen.sketches,
        evaluation=Evaluation.of(split),
        data=f"{counted(seen.samples, 'sample')} of {split.description}",
        random=calibration.is_random,
    )


def _kept_parts(
    prepared: Prepared, tensors: Sequence[str], calibration: Calibration, options: Mapping[str, Any]
) -> KeptObservations | None:
    """Return where parts of an observation are kept, if anywhere."""
    if calibration.work is None or calibration.engine.is_local:
        return None
    facts = (
        prepared.content_fingerprint,
        list(tensors),
        sorted((name, repr(value)) for name, value in options.items()),
        calibration.identity,
        calibration.holdout,
        repr(getattr(calibration.engine, "shard", None)),
    )
    return KeptObservations(calibration.work, repr(facts))


def find_input_means(
    prepared: Prepared, axes: Mapping[str, int], calibrated: Calibrated, calibration: Calibration
) -> dict[str, npt.NDArray[np.float64]]:
    """Return the mean of each channel of these tensors: as observed, else from one more pass."""
    found: Mapping[str, TensorSketch] = {
        name: sketch
        for name, sketch in calibrated.sketches.items()
        if name in axes and sketch.mean_axis == axes[name]
    }
    if len(found) < len(axes):  # a file of sketches that were kept for ranges alone
        again = observe_tensors(prepared, list(axes), calibration, detail="extremes", means=axes)
        found = again.sketches
    means = {name: sketch.channel_mean for name, sketch in found.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def take_samples(
    prepared: Prepared, calibration: Calibration, count: int = EVALUATION_SAMPLES
) -> list[Sample]:
    """Return the first samples of the data; of a text windows spread over it."""
    if isinstance(calibration.data, TextData):
        calibration = replace(calibration, limit=min(calibration.limit or count, count))
    return list(islice(calibration.open(prepared.model), count))


def unseen_samples(prepared: Prepared, calibration: Calibration) -> Evaluation:
    """Return the first samples of data that nothing was calibrated on, if any was given."""
    if calibration.data is None:
        return NO_SAMPLES
    return Evaluation(take_samples(prepared, calibration), unseen=True)


def keep_data(prepared: Prepared, calibration: Calibration) -> Calibration:
    """Return the data, which must be given, in a form that two passes can read."""
    require_data(prepared.recipe, calibration)
    return calibration.keep(prepared.model)


def require_data(
    recipe: Recipe,
    calibration: Calibration,
    does: str | None = None,
    instead: tuple[str, str] | None = None,
) -> None:
    """Refuse what a recipe does without data; `instead` says what else helps, here and there.

    First as in Python, then as on the command line.
    """
    if calibration.data is None:
        ways, verb = GIVE_DATA, "smooths" if recipe.mode == "dynamic" else "quantizes"
        does = does or f"{verb} activations"
        if instead is not None:
            remedy, command = instead
            ways = {
                "remedy": f"give data, or {remedy}",
                "command": f"give --data PATH, or {command}",
            }
        raise DataError(f"recipe {recipe.name!r} {does} and needs calibration data", **ways)


def random_data_notes(random: bool) -> tuple[str, ...]:
    """Return what a plan notes where its data was random numbers."""
    if not random:
        return ()
    return ("calibrated on random data: the model shows that it runs, not how accurate it can be",)


def _given_sketches(layout: Layout, sketches: Mapping[str, TensorSketch]) -> Calibrated:
    missing = [name for name in layout.observed if name not in sketches]
    if missing:
        raise DataError(
            f"nothing was observed of {missing[0]!r} ({len(missing)} tensors are missing); "
            "observe all that is to be quantized, or exclude its nodes."
        )
    return Calibrated(sketches=sketches, data="ranges that were observed elsewhere")


def _stored_sketches(
    prepared: Prepared, layout: Layout, stored: str | Path, calibration: Calibration
) -> Calibrated:
    sketches = load_sketches(stored, fingerprint=prepared.content_fingerprint)
    missing = [name for name in layout.observed if name not in sketches]
    if missing:
        raise DataError(
            f"{str(stored)!r} has no sketch of {missing[0]!r} ({len(missing)} missing): it was "
            "written for a recipe that takes other nodes, or by an earlier version; delete the "
            "file to observe again."
        )
    measured = () if calibration.data is None else take_samples(prepared, calibration)
    return Calibrated(
        sketches=sketches,
        evaluation=Evaluation(measured),
        data=f"sketches from {Path(stored).name}",
    )


def detail_for(recipe: Recipe, *, keep: bool) -> Detail:
    """Return what to see: extremes, where all methods look at nothing else and nothing is kept."""
    methods: list[RangeMethod] = [recipe.ranges]
    methods += [o.ranges for o in recipe.overrides.values() if o.ranges is not None]
    types = [recipe.activation, *(t for o in recipe.overrides.values() for t in o.types)]
    voted = [m for m in methods if isinstance(m, MinMSE) and m.mode == "most-common"]
    plain = all(isinstance(m, MinMax | MeanExtremes | NonOverflow) or m in voted for m in methods)
    if keep or not plain or any(not qtype.is_integer for qtype in types):
        return "histogram"
    return "extremes"


def channel_axes(recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Return the tensors that get a range for each channel, and the axis of these."""
    if not isinstance(recipe.ranges, MinMax) or not recipe.ranges.per_channel:
        return {}
    # Channels that vary in number from sample to sample cannot have a scale each.
    shapes = {e.name: e.value.shape for e in layout.entries.values() if e.needs_data}
    return {
        name: 1
        for name, shape in shapes.items()
        if shape is not None and len(shape) > 1 and isinstance(shape[1], int)
    }


def mean_axes(model: ir.Model, layout: Layout) -> dict[str, int]:
    """Return what layers with a bias read, and along which axis they sum it up."""
    quantized = {name for name, node in layout.nodes.items() if node.action == "quantize"}
    return input_axes(find_biased_layers(model, quantized)[0])
