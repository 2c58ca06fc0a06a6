"""The weight-only algorithms by their settings: one table, one function per algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

from bitwright.decide.layout.weight_only import without_data
from bitwright.equalize.awq import awq_clip
from bitwright.errors import ModelError
from bitwright.graph.tensors import row_reader
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.numerics import NUMPY, Arrays, Batches, CrossMoment, SecondMoment, pack_nearest
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    QuantizedBlocks,
    quantize_in_blocks,
    round_to_codes,
)
from bitwright.numerics.nbits import LazyBlocks, NBitsTensors, nbits_form, pack_nbits, widen
from bitwright.plan import QuantPlan, WeightPlan
from bitwright.recipe import GPTQ, HQQ, Nearest, WeightOnly
from bitwright.rounding.error_propagation import propagate_error
from bitwright.rounding.gptq import HessianFactor, factor_hessian, gptq
from bitwright.rounding.hqq import hqq
from bitwright.rounding.refinement import refine
from bitwright.run import LayerwiseRun


class InputMoments:
    """The moments of a layer's inputs, made once for all layers that read them.

    With `floats`, what the float model gives the layer, errors of earlier layers are seen as well.
    """

    def __init__(
        self,
        inputs: LayerwiseRun,
        source: str,
        channels: int,
        xp: Arrays,
        *,
        floats: LayerwiseRun | None = None,
        magnitudes: bool = False,
        factored_once: bool = False,
    ) -> None:
        moment = SecondMoment(channels, magnitudes=magnitudes, xp=xp)
        cross = None if floats is None else CrossMoment(channels, xp=xp)
        wanted = repeat(None) if floats is None else floats.values(source)
        seen = Batches(moment.update, channels, xp)
        paired = None if cross is None else Batches(cross.update, channels, xp)
        # `repeat` has no end.
        for array, should_be in zip(inputs.values(source), wanted, strict=floats is not None):
            seen.add(array)
            if paired is not None and _belong_together(array, should_be, xp):
                paired.add(array, should_be)
        seen.end()
        if paired is not None:
            paired.end()
        self.seen = moment.count > 0
        """Whether any input reached the layer: an expert may get no token. Else nothing is here."""
        if not self.seen:
            return
        self.cross: Any = None if cross is None else cross.take_matrix()
        """The mean of x (f - x)', an array of `xp`; None without the float model's inputs f."""
        self.magnitudes: Any = moment.mean_magnitudes() if magnitudes else None
        """The mean of |x|, where it was asked for."""
        self.matrix = moment.take_matrix()
        """The second moment, an array of `xp`; gone with `factored_once` when it was factored."""
        self._xp, self._once = xp, factored_once
        self._factors: dict[tuple[float, bool], HessianFactor] = {}

    def factor(self, method: GPTQ) -> HessianFactor:
        """Return the second moment factored for GPTQ."""
        key = (method.damping, method.act_order)
        if key not in self._factors:
            self._factors[key] = factor_hessian(
                self.matrix,
                damping=method.damping,
                act_order=method.act_order,
                overwrite=self._once,
                xp=self._xp,
            )
            if self._once:
                del self.matrix
        return self._factors[key]


def is_factored_once(weights: Sequence[PlannedWeight], options: WeightOnly) -> bool:
    """Whether rounding these weights takes nothing but one factor of their inputs' moment."""
    methods = {weight.plan.rounding for weight in weights}
    plain = options.awq is None and not options.refine and not options.error_propagation
    return plain and len(methods) == 1 and all(isinstance(method, GPTQ) for method in methods)


def _belong_together(array: Any, wanted: Any, xp: Arrays) -> bool:
    """Whether rows of both models are those of the same tokens: an expert may get others."""
    if array.shape != wanted.shape:
        return False
    ours, theirs = xp.array(array), xp.array(wanted)
    return bool(((theirs - ours) ** 2).sum() < 0.5 * (ours**2).sum())


class WeightTask(NamedTuple):
    """A weight [K, N] to round by its plan, and the moments of what it is multiplied with."""

    name: str
    weight: Any
    """An array of numpy, or of what computes."""
    plan: WeightPlan
    format: BlockFormat
    inputs: InputMoments | None
    """None where the layer's inputs were not observed."""

    def awq_grid(self, xp: Arrays) -> Any:
        """Return the range of each block as AWQ chooses it."""
        assert self.inputs is not None
        return awq_clip(self.weight, self.inputs.matrix, self.format, xp=xp)


def _round_nearest(task: WeightTask, method: Nearest, clips: bool, xp: Arrays) -> QuantizedBlocks:
    if task.inputs is not None and (clips or method.clip):
        return round_to_codes(task.weight, task.awq_grid(xp), task.format, xp=xp)
    return quantize_in_blocks(task.weight, task.format, shrinks=shrinks_of(method), xp=xp)


def shrinks_of(method: Nearest) -> Sequence[float]:
    """Return the parts of a block's range that are tried without data."""
    return SHRINKS if method.clip else (method.shrink,)


def _round_by_gptq(task: WeightTask, method: GPTQ, clips: bool, xp: Arrays) -> QuantizedBlocks:
    assert task.inputs is not None
    return gptq(
        task.weight,
        task.inputs.factor(method),
        task.format,
        grid=task.awq_grid(xp) if clips else None,
        shrinks=SHRINKS if method.clip else (1.0,),
        per_column=method.per_column,
    )


ROUNDINGS: dict[type, Callable[[WeightTask, Any, bool, Arrays], QuantizedBlocks]] = {
    Nearest: _round_nearest,
    GPTQ: _round_by_gptq,
    HQQ: lambda task, method, clips, xp: hqq(
        task.weight, task.format, float_zero_points=method.float_zero_points, xp=xp
    ),
}
"""Each of a task, its method, whether AWQ chooses the range of each block, and what computes."""


def make_tasks(
    weights: Iterable[PlannedWeight], inputs: InputMoments | None
) -> Iterator[WeightTask]:
    """Yield the tasks of weights that read the same tensor."""
    for weight in weights:
        yield WeightTask(weight.name, weight.read(), weight.plan, weight.format(), inputs)


def task_rounder(options: WeightOnly) -> Callable[[WeightTask], tuple[str, QuantizedBlocks]]:
    """Return what rounds weights with numpy, wherever it runs."""
    return lambda task: (task.name, _round(task, options, NUMPY))


def round_group(
    weights: Sequence[PlannedWeight], inputs: InputMoments, options: WeightOnly, xp: Arrays
) -> Iterator[tuple[str, QuantizedBlocks]]:
    """Yield weights that read the same tensor, rounded; torch rounds those of one form together.

    Columns do not depend on each other, and a GPU takes as long for few as for many.
    """
    first = weights[0]
    kinds = {(weight.format(), weight.plan.rounding, weight.plan.awq) for weight in weights}
    method = first.plan.rounding
    shares_scales = isinstance(method, GPTQ) and not method.per_column
    if xp is NUMPY or not inputs.seen or len(kinds) > 1 or shares_scales:
        for task in make_tasks(weights, inputs):
            yield task.name, _round(task, options, xp)
        return
    whole = xp.concatenate([weight.read_on(xp) for weight in weights], 1)
    task, start = WeightTask("", whole, first.plan, first.format(), inputs), 0
    blocks = _round(task, options, xp)
    for weight in weights:
        stop = start + weight.shape[1]
        yield weight.name, blocks.columns(start, stop)
        start = stop


def round_weight(weight: PlannedWeight, options: WeightOnly, xp: Arrays) -> QuantizedBlocks:
    """Return one weight rounded as its plan says, without a look at data."""
    [task] = make_tasks([weight], None)
    return _round(task, options, xp)


def _round(task: WeightTask, options: WeightOnly, xp: Arrays) -> QuantizedBlocks:
    """Return a weight rounded as its plan says, and refined where the recipe asks for it."""
    method, inputs, plan = task.plan.rounding, task.inputs, task.plan
    if inputs is None or not inputs.seen:
        inputs, method = None, without_data(method)
    weight = task.weight
    if inputs is not None and inputs.cross is not None:
        strength = options.error_propagation
        weight = propagate_error(weight, inputs.matrix, inputs.cross, strength=strength, xp=xp)
    clips = options.awq is not None and options.awq.clip and plan.awq
    task = task._replace(weight=weight, inputs=inputs)
    blocks = ROUNDINGS[type(method)](task, method, clips, xp)
    # With 8 bits, what is left to gain is a 256th of what it is with 4.
    if options.refine and inputs is not None and plan.bits < 8:
        damping = method.damping if isinstance(method, GPTQ) else GPTQ().damping
        blocks = refine(
            weight, blocks, inputs.matrix, rounds=options.refine, damping=damping, xp=xp
        )
    return blocks


# Weights that need no data, rounded when the model is written: nothing waits on disk for it ----


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
