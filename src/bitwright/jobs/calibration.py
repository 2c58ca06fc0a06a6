"""The data that ranges are observed on: how it is read, and what has to be seen of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from bitwright.data import (
    ImagePreprocess,
    RandomData,
    Samples,
    TextData,
    cache_samples,
    channels_first_specs,
    open_data,
    to_channels_last,
)
from bitwright.decide.layout.entries import Layout
from bitwright.jobs.opening import input_specs
from bitwright.observe import MEMORY_BUDGET, Detail, TensorSketch
from bitwright.prepare import channels_last_inputs
from bitwright.recipe import MinMax, MinMSE, NonOverflow, RangeMethod, Recipe
from bitwright.rounding import find_bias_sites

__all__ = ["Calibration", "channel_axes", "detail_for", "mean_axes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The data that ranges are observed on, and how to read it."""

    data: Any = None
    limit: int | None = None
    preprocess: ImagePreprocess | str | None = None
    holdout: bool = True
    """Keep some samples out of calibration, to measure the result on."""
    sketches: str | Path | Mapping[str, TensorSketch] | None = None
    """A file that keeps what was observed, or what was observed elsewhere."""
    memory_budget: int = MEMORY_BUDGET
    engine: Any = None
    progress: bool | Callable[[int, int | None], None] = True

    def open(self, model: ir.Model) -> Samples:
        """Return the samples, which are in the layout of the given model, as checked feeds."""
        return to_channels_last(self._read(model), channels_last_inputs(model))

    def keep(self, model: ir.Model) -> Calibration:
        """Return the same data in a form that two passes can read."""
        kept = cache_samples(self._read(model), max_bytes=self.memory_budget)
        return replace(self, data=kept, limit=None, preprocess=None)

    def _read(self, model: ir.Model) -> Samples:
        specs = channels_first_specs(input_specs(model), channels_last_inputs(model))
        if isinstance(self.data, RandomData):
            return self.data.samples(specs)
        if isinstance(self.data, TextData):
            return self.data.samples(specs, limit=self.limit)
        return open_data(self.data, specs, limit=self.limit, preprocess=self.preprocess)


def detail_for(recipe: Recipe, *, keep: bool) -> Detail:
    """Return what to see: extremes, where all methods look at nothing else and nothing is kept.

    >>> detail_for(Recipe(ranges=MinMax()), keep=False), detail_for(Recipe(), keep=True)
    ('extremes', 'histogram')
    """
    methods: list[RangeMethod] = [recipe.ranges]
    methods += [o.ranges for o in recipe.overrides.values() if o.ranges is not None]
    types = [recipe.activation, *(o.qtype for o in recipe.overrides.values() if o.qtype)]
    voted = [m for m in methods if isinstance(m, MinMSE) and m.mode == "most-common"]
    plain = all(isinstance(m, MinMax | NonOverflow) or m in voted for m in methods)
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
    sites, _ = find_bias_sites(model, quantized)
    axes: dict[str, int] = {}
    for site in sites:
        axes.setdefault(site.source.name or "", site.input_axis)
    return axes
