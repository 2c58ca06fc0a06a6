"""The weight-only algorithms by their settings: one table, one function per algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from bitwright.decide.layout.weight_only import without_data
from bitwright.equalize.awq import awq_clip
from bitwright.jobs.weight_only.layers import PlannedWeight
from bitwright.numerics.arrays import NUMPY, Arrays
from bitwright.numerics.blocks import (
    SHRINKS,
    BlockFormat,
    QuantizedBlocks,
    quantize_in_blocks,
    round_to_codes,
)
from bitwright.numerics.second_moment import Batches, CrossMoment, SecondMoment
from bitwright.plan import WeightPlan
from bitwright.recipe import GPTQ, HQQ, Nearest, WeightOnly
from bitwright.rounding.error_propagation import propagate_error
from bitwright.rounding.gptq import HessianFactor, factor_hessian, gptq
from bitwright.rounding.hqq import hqq
from bitwright.rounding.refinement import refine
from bitwright.run import LayerwiseRun

__all__ = [
    "ROUNDINGS",
    "InputMoments",
    "Task",
    "WeightTask",
    "is_factored_once",
    "make_tasks",
    "round_group",
    "round_weight",
    "shrinks_of",
    "task_rounder",
]


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


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One weight [K, N] to round."""

    weight: Any
    """An array of numpy or of `xp`."""
    format: BlockFormat
    inputs: InputMoments | None
    """None where the layer's inputs were not observed."""
    awq_clip: bool = False
    """Whether AWQ chooses the range of each block."""
    xp: Arrays = field(default=NUMPY)


def _round_to_nearest(task: Task, method: Nearest) -> QuantizedBlocks:
    if task.inputs is not None and (task.awq_clip or method.clip):
        grid = awq_clip(task.weight, task.inputs.matrix, task.format, xp=task.xp)
        return round_to_codes(task.weight, grid, task.format, xp=task.xp)
    return quantize_in_blocks(task.weight, task.format, shrinks=shrinks_of(method), xp=task.xp)


def shrinks_of(method: Nearest) -> Sequence[float]:
    """Return the parts of a block's range that are tried without data."""
    return SHRINKS if method.clip else (method.shrink,)


def _round_by_gptq(task: Task, method: GPTQ) -> QuantizedBlocks:
    assert task.inputs is not None
    grid = None
    if task.awq_clip:
        grid = awq_clip(task.weight, task.inputs.matrix, task.format, xp=task.xp)
    return gptq(
        task.weight,
        task.inputs.factor(method),
        task.format,
        grid=grid,
        shrinks=SHRINKS if method.clip else (1.0,),
        per_column=method.per_column,
    )


def _round_by_hqq(task: Task, method: HQQ) -> QuantizedBlocks:
    return hqq(task.weight, task.format, float_zero_points=method.float_zero_points, xp=task.xp)


ROUNDINGS: dict[type, Callable[[Task, Any], QuantizedBlocks]] = {
    Nearest: _round_to_nearest,
    GPTQ: _round_by_gptq,
    HQQ: _round_by_hqq,
}


class WeightTask(NamedTuple):
    """A weight [K, N] to round by its plan, and the moments of what it is multiplied with."""

    name: str
    matrix: Any
    plan: WeightPlan
    format: BlockFormat
    inputs: InputMoments | None


def make_tasks(
    weights: Iterable[PlannedWeight], inputs: InputMoments | None
) -> Iterator[WeightTask]:
    """Yield the tasks of weights that read the same tensor."""
    for weight in weights:
        yield WeightTask(weight.name, weight.read(), weight.plan, weight.format(), inputs)


def task_rounder(options: WeightOnly) -> Callable[[WeightTask], tuple[str, QuantizedBlocks]]:
    """Return what rounds weights with numpy, wherever it runs."""
    return lambda task: (
        task.name,
        _round(task.matrix, task.plan, task.format, task.inputs, options, NUMPY),
    )


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
        for weight in weights:
            yield weight.name, round_weight(weight, inputs, options, xp)
        return
    whole = xp.concatenate([weight.read_on(xp) for weight in weights], 1)
    blocks, start = _round(whole, first.plan, first.format(), inputs, options, xp), 0
    for weight in weights:
        stop = start + weight.shape[1]
        yield weight.name, blocks.columns(start, stop)
        start = stop


def round_weight(
    planned: PlannedWeight, inputs: InputMoments | None, options: WeightOnly, xp: Arrays
) -> QuantizedBlocks:
    """Return one weight rounded as its plan says, and refined where the recipe asks for it."""
    return _round(planned.read(), planned.plan, planned.format(), inputs, options, xp)


def _round(
    weight: Any,
    plan: WeightPlan,
    form: BlockFormat,
    inputs: InputMoments | None,
    options: WeightOnly,
    xp: Arrays,
) -> QuantizedBlocks:
    """Return an array of numpy or `xp` rounded as the weight of a plan."""
    method = plan.rounding
    if inputs is None or not inputs.seen:
        inputs, method = None, without_data(method)
    if inputs is not None and inputs.cross is not None:
        strength = options.error_propagation
        weight = propagate_error(weight, inputs.matrix, inputs.cross, strength=strength, xp=xp)
    clips = options.awq is not None and options.awq.clip and plan.awq
    task = Task(weight, form, inputs, clips, xp)
    blocks = ROUNDINGS[type(method)](task, method)
    # With 8 bits, what is left to gain is a 256th of what it is with 4.
    if options.refine and inputs is not None and plan.bits < 8:
        damping = method.damping if isinstance(method, GPTQ) else GPTQ().damping
        blocks = refine(
            weight, blocks, inputs.matrix, rounds=options.refine, damping=damping, xp=xp
        )
    return blocks
