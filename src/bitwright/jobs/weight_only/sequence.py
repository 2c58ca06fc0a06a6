"""Round weights one after the other, each for the inputs that the rounded layers before it give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bitwright.equalize.awq import CLIP_RATIOS, awq_scales
from bitwright.errors import DataError
from bitwright.graph.branches import find_choices, open_branches
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.rounding import (
    InputMoments,
    is_factored_once,
    make_tasks,
    round_group,
    round_weight,
    task_rounder,
)
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.numerics import NUMPY, QuantizedBlocks
from bitwright.plan import QuantPlan, Smoothing
from bitwright.rounding.store import BlockStore
from bitwright.run import LayerwiseRun, PartOpener, run_side_by_side
from bitwright.support import Array, Workers, counted

Feeds = Mapping[str, Array]


def round_weights(
    work: WeightWork, plan: QuantPlan, samples: Iterable[Feeds] | None, store: BlockStore
) -> list[str]:
    """Round every weight of the plan into the store; those that are in it already stay.

    Methods that weigh errors by a layer's inputs need samples. In a sequential recipe, each layer
    sees the inputs that the rounded layers before it give, and with `error_propagation` those of
    the float model, too. The engine of the data rounds weights that do not depend on each other:
    all, or in a sequential recipe those that read the same tensor. Returns what there is to note.
    """
    branches, progress = _Branches(work.prepared.model, samples), work.progress
    with work.calibration.engine.open(task_rounder, plan.recipe.weights) as workers:
        job = _Rounding(work, plan, branches, store, workers)
        for done, (name, blocks) in enumerate(job.rounded(), start=1):
            store.put(name, blocks)
            if progress is not None:
                progress(done, len(plan.weights))
    notes, unreached = branches.notes(), job.unreached
    if unreached:
        notes.append(
            f"{counted(len(unreached), 'weight')} rounded to the nearest, as no sample reached the "
            f"products with them: {', '.join(unreached[:3])}{', ...' if unreached[3:] else ''}"
        )
    return notes


class _Branches:
    """Samples that take the same branches as the first one does, and the model with only these.

    Where an input of the model chooses between branches, as in a decoder with and without a cache,
    products inside them are seen then as all others are. The branches share their weights.
    """

    def __init__(self, model: ir.Model, samples: Iterable[Feeds] | None) -> None:
        self.model, self.samples = model, samples
        self._conditions = set(find_choices(model).values())
        self._left_out = 0
        if samples is None or not self._conditions:
            return
        rest = iter(samples)
        first = next(rest, None)
        if first is not None:
            self.model = open_branches(model, first)
            self.samples = self._alike(first, rest)

    def _alike(self, first: Feeds, rest: Iterator[Feeds]) -> Iterator[Feeds]:
        yield first
        for sample in rest:
            if all(bool(sample[c].item()) == bool(first[c].item()) for c in self._conditions):
                yield sample
            else:
                self._left_out += 1

    def notes(self) -> list[str]:
        """Return what there is to note, once the samples were read."""
        if not self._left_out:
            return []
        return [
            f"{counted(self._left_out, 'sample')} not used to round weights: the first sample "
            f"takes another branch ({', '.join(sorted(self._conditions))})"
        ]


@dataclass(frozen=True, slots=True)
class _Rounding:
    """The weights of a plan to be rounded, and the means to round them."""

    work: WeightWork
    plan: QuantPlan
    branches: _Branches
    store: BlockStore
    workers: Workers
    unreached: list[str] = field(default_factory=list)
    """Weights that no sample reached."""

    def rounded(self) -> Iterator[tuple[str, QuantizedBlocks]]:
        """Yield each weight that is not in the store, in which it must be before the next."""
        weights = planned_weights(self.work.prepared.model, self.plan, self.branches.model)
        needs_data = self.plan.recipe.weights.needs_data
        groups = _by_source(w for w in weights if needs_data or w.plan.rounding.needs_data)
        if groups and self.branches.samples is None:
            method = next(iter(groups.values()))[0].plan.rounding
            raise DataError(
                f"the rounding {type(method).__name__} weighs errors by what each layer reads and "
                "needs calibration data",
                remedy="give data, or choose plain nearest or hqq",
                command="give --data PATH, or --set weights.rounding=hqq",
            )
        observed = {weight.name for group in groups.values() for weight in group}
        unseen = [w for w in weights if w.name not in observed and w.name not in self.store]
        # Of a branch that no sample took.
        self.unreached.extend(w.name for w in unseen if w.plan.rounding.needs_data)
        if self.work.xp is NUMPY:
            yield from self.workers.map(make_tasks(unseen, None))
        else:
            for weight in unseen:
                yield weight.name, round_weight(weight, self.plan.recipe.weights, self.work.xp)
        if groups:
            yield from self._by_inputs(groups)

    def _by_inputs(
        self, groups: Mapping[str, Sequence[PlannedWeight]]
    ) -> Iterator[tuple[str, QuantizedBlocks]]:
        """Yield weights by the inputs of their layers, which the model is run for."""
        options, xp, samples = self.plan.recipe.weights, self.work.xp, self.branches.samples
        assert samples is not None
        model, beside = self.branches.model, bool(options.error_propagation)
        starts = _starts(model, groups)
        with _run(self.work, model, list(starts), samples, beside_float=beside) as run:
            read_groups = self._read_groups(run, groups, starts)
            if xp is NUMPY and not options.sequential:
                yield from self.workers.map(
                    task
                    for _, missing, moments in read_groups
                    for task in make_tasks(missing, moments)
                )
                return
            for inputs, missing, moments in read_groups:
                if moments is not None and xp is NUMPY:
                    yield from self.workers.map(make_tasks(missing, moments))
                elif moments is not None:
                    yield from round_group(missing, moments, options, xp)
                del moments
                if options.sequential:
                    for weight in groups[starts[inputs.node]]:
                        inputs.put_weight(weight.run_name, weight.restored(self.store.get, xp))

    def _read_groups(
        self,
        run: Iterable[tuple[LayerwiseRun, LayerwiseRun | None]],
        groups: Mapping[str, Sequence[PlannedWeight]],
        starts: Mapping[str, str],
    ) -> Iterator[tuple[LayerwiseRun, list[PlannedWeight], InputMoments | None]]:
        """Yield the weights of each layer that are missing, and the moments of its inputs."""
        for inputs, floats in run:
            source = starts[inputs.node]
            missing = [weight for weight in groups[source] if weight.name not in self.store]
            if not missing:
                yield inputs, missing, None
                continue
            once = is_factored_once(missing, self.plan.recipe.weights)
            moments = InputMoments(
                inputs, source, missing[0].shape[0], self.work.xp, floats=floats, factored_once=once
            )
            if not moments.seen:
                self.unreached.extend(weight.name for weight in missing)
            yield inputs, missing, moments
            del moments  # one Hessian at a time


@contextmanager
def _run(
    work: WeightWork,
    model: ir.Model,
    layers: Sequence[str],
    samples: Iterable[Feeds],
    *,
    beside_float: bool = False,
) -> Iterator[Iterable[tuple[LayerwiseRun, LayerwiseRun | None]]]:
    """Give the inputs of each layer, and with `beside_float` the float model's beside them."""
    xp, providers = work.xp, work.prepared.providers
    opener: PartOpener | None = None
    if xp is not NUMPY and providers is None:  # layers run where weights are rounded
        from bitwright.learning.torch_parts import TorchParts

        opener = TorchParts(xp.device)
    if not beside_float:
        with LayerwiseRun(model, layers, samples, providers=providers, engine=opener) as run:
            yield ((inputs, None) for inputs in run)
        return
    with run_side_by_side(
        model, model, layers, samples, weights={}, providers=providers, engine=opener
    ) as pairs:
        yield ((inputs, floats) for floats, inputs in pairs)


def _starts(model: ir.Model, groups: Mapping[str, Sequence[PlannedWeight]]) -> dict[str, str]:
    """Return the first product that reads each of the tensors; each product reads only one."""
    products = {
        (source, name) for source, group in groups.items() for w in group for name in w.plan.nodes
    }
    found: dict[str, str] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        if source is not None and (source.name, node.name) in products:
            found.setdefault(source.name or "", node.name or "")
    return {node: source for source, node in found.items()}


def _by_source(weights: Iterable[PlannedWeight]) -> dict[str, list[PlannedWeight]]:
    """Return weights by the tensor that they are multiplied with, where it can be seen."""
    groups: dict[str, list[PlannedWeight]] = {}
    for weight in weights:
        if weight.source is not None:
            groups.setdefault(weight.source, []).append(weight)
    return groups


# AWQ ------------------------------------------------------------------------------------------


def find_scaling(work: WeightWork, plan: QuantPlan) -> dict[str, Smoothing]:
    """Return what AWQ divides the inputs of products by, and multiplies their weights with."""
    options, xp, model, progress = (
        plan.recipe.weights.awq,
        work.xp,
        work.prepared.model,
        work.progress,
    )
    assert options is not None
    alphas = np.linspace(0, 1, options.grid + 1).tolist()
    groups = _by_source(planned_weights(model, plan))
    starts = _starts(model, groups)
    found: dict[str, Smoothing] = {}
    with _run(work, model, list(starts), work.samples()) as run:
        for inputs, _ in run:
            source = starts[inputs.node]
            # A weight that others read too would be scaled for them as well.
            group = [w for w in groups[source] if w.plan.awq and len(w.plan.nodes) == 1]
            if not group:
                continue
            moments = InputMoments(inputs, source, group[0].shape[0], xp, magnitudes=True)
            if moments.seen:
                factors = awq_scales(
                    [weight.read() for weight in group],
                    moments.magnitudes,
                    moments.matrix,
                    group[0].format(),
                    alphas=alphas,
                    shrinks=CLIP_RATIOS if options.clip else (1.0,),
                    xp=xp,
                )
                if np.any(factors != 1):
                    # As float32, in which the model will hold them: the plan gives the same bytes.
                    stored = factors.astype(np.float32).astype(np.float64)
                    names = tuple(weight.plan.nodes[0] for weight in group)
                    found[source] = Smoothing(nodes=names, factors=tuple(stored.tolist()))
            if progress is not None:
                progress(len(found), len(groups))
    return found
