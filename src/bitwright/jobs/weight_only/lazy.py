"""Weights that need no data, rounded when the model is written: nothing waits on disk for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from bitwright.errors import ModelError
from bitwright.graph.tensors import row_reader
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.rounding import round_weight, shrinks_of
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.numerics import Arrays, QuantizedBlocks, pack_nearest
from bitwright.numerics.nbits import LazyBlocks, NBitsTensors, nbits_form, pack_nbits, widen
from bitwright.plan import QuantPlan
from bitwright.recipe import Nearest, WeightOnly


def can_round_lazily(plan: QuantPlan) -> bool:
    """Whether all weights are rounded so fast that it may be done again each time one is read."""
    rounders = [weight.rounding for weight in plan.weights.values()]
    return not plan.recipe.weights.needs_data and all(
        isinstance(rounder, Nearest) and not rounder.needs_data for rounder in rounders
    )


def round_lazily(work: WeightWork, plan: QuantPlan) -> dict[str, LazyBlocks]:
    """Return the weights of a plan, each read from the model and rounded when it is asked for."""
    done: set[str] = set()
    progress, xp, options = work.progress, work.xp, plan.recipe.weights

    def report(name: str) -> None:
        if progress is not None and name not in done:
            done.add(name)
            progress(len(done), len(plan.weights))

    weights = planned_weights(work.prepared.model, plan)
    found = {weight.name: _lazy(weight, options, xp, report) for weight in weights}
    return {name: found[name] for name in plan.weights}


def keep_in_memory(blocks: LazyBlocks) -> LazyBlocks:
    """Return a weight that is made once, for a model that is opened and written."""
    return replace(blocks, load=cache(blocks.load), pack=cache(blocks.pack))


def _lazy(
    weight: PlannedWeight, options: WeightOnly, xp: Arrays, report: Callable[[str], None]
) -> LazyBlocks:
    format, method = weight.format(), weight.plan.rounding
    assert isinstance(method, Nearest)

    def load() -> QuantizedBlocks:
        blocks = round_weight(weight, options, xp)
        report(weight.name)
        return blocks

    def pack() -> NBitsTensors:
        tensor = weight.value.const_value
        assert tensor is not None
        if len(tensor.shape) != 2:
            return pack_nbits(widen(load()), xp=xp)
        try:
            packed = pack_nearest(
                row_reader(tensor),
                weight.shape,
                format,
                shrinks=shrinks_of(method),
                transposed=weight.transposed,
                xp=xp,
            )
        except ModelError as error:
            raise weight.not_finite() from error
        report(weight.name)
        return packed

    return LazyBlocks(format, nbits_form(format, weight.shape), load, pack)
