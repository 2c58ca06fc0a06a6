"""Ranges of activations, cut at either end where that brings the outputs closer to float.

A range is chosen by what its tensor holds, and not by what becomes of it: behind a GELU all that
lies far below zero is zero, and half of the integers may be spent on it. So the tensors around the
units of most error get ranges with less and less at one end, and the outputs of the whole quantized
model decide.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from bitwright.assess.judge.judgement import Judge
from bitwright.data import Sample
from bitwright.jobs.improve.loop import Attempt, Trail, improve
from bitwright.jobs.improve.mixtures import UnitTable
from bitwright.jobs.improve.simulation import Simulation
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.output import Planned
from bitwright.numerics.scales import affine_parameters
from bitwright.plan import QuantPlan, TensorPlan

MAX_UNITS = 4
"""How many units are looked at, those of the most error."""
MIN_SHARE = 0.05
"""The share of all error that such a unit has at least."""
MIN_SAVED = 0.01
"""The share of the loss that cutting an end once more must save: half of what a unit of the least
share would lose less, were its error halved, as losses are roots of errors."""
_KEPT = (0.5, 0.25, 0.125, 0.0625)
"""What is kept of one end of the range, from attempt to attempt."""

Range = tuple[float, float]


class _Cut(NamedTuple):
    """A plan, and the loss of its outputs."""

    plan: QuantPlan
    loss: float


def trim_ranges(
    prepared: Prepared,
    plan: QuantPlan,
    table: UnitTable,
    samples: Sequence[Sample],
    *,
    report: Callable[[str], None] = lambda line: None,
) -> QuantPlan:
    """Return the plan with smaller ranges where the outputs are closer to float for it."""
    recipe = plan.recipe
    if recipe.scales != "float" or recipe.ranges.symmetric:
        return plan  # both ends are one
    worst = {name for name, share in table.shares(MAX_UNITS) if share >= MIN_SHARE}
    keys = dict.fromkeys(_activations(plan, [unit for unit in table.units if unit.node in worst]))
    expected = [prepared.reference_session.run(sample) for sample in samples]
    simulation = Simulation(prepared, Planned(plan))

    def make(tried: QuantPlan) -> _Cut:
        judge = Judge(prepared.reference)
        for sample, wanted in zip(samples, expected, strict=True):
            judge.add(sample, wanted, simulation.run(tried, sample))
        return _Cut(tried, judge.finish().loss)

    ends = [partial(_cut, key=key, end=end) for key in keys for end in (0, 1)]
    best = improve(plan, ends, make, lambda a, b: b.loss <= (1 - MIN_SAVED) * a.loss).current
    entries = [(plan.tensors[key], best.plan.tensors[key]) for key in keys]
    changed = [after for before, after in entries if before != after]
    for entry in changed:
        assert isinstance(entry.range, tuple)
        low, high = entry.range
        report(f"{entry.tensor}: range cut to {low:.3g} to {high:.3g}")
    if not changed:
        return plan
    names = ", ".join(entry.tensor for entry in changed)
    return best.plan.with_notes([f"ranges cut by the error of the outputs: {names}"])


def _cut(
    trail: Trail[_Cut], *, key: str, end: int
) -> Generator[Attempt[QuantPlan], Trail[_Cut], None]:
    """Keep less and less of one end of a range, as long as that helps."""
    given = _range_of(trail.current.plan.tensors[key])
    for kept in _KEPT:
        plan = trail.current.plan
        low, high = _range_of(plan.tensors[key])
        tried = (kept * given[0], high) if end == 0 else (low, kept * given[1])
        if tried == (low, high):
            return
        scale, zero = affine_parameters(*tried, plan.tensors[key].qtype)
        entry = msgspec.structs.replace(
            plan.tensors[key],
            scale=float(scale),
            zero_point=int(zero),
            range=tried,
            method="least error of the outputs",
        )
        tensors = {**plan.tensors, key: entry}
        trail = yield Attempt(msgspec.structs.replace(plan, tensors=tensors))
        if trail.last is not trail.best:
            return


def _activations(plan: QuantPlan, units: Sequence[Unit]) -> Iterator[str]:
    """Yield the entries that these units read and write, by whose scale it is."""
    for unit in units:
        for name in unit.nodes:
            node = plan.nodes[name]
            for key in (*node.inputs, *node.outputs):
                if key is None or plan.tensors[key].role != "activation":
                    continue
                root = plan.root(key)
                entry = plan.tensors[root]
                is_byte = entry.qtype.is_integer and entry.qtype.bits == 8
                if is_byte and entry.scale is not None and not np.ndim(entry.scale):
                    yield root


def _range_of(entry: TensorPlan) -> Range:
    scale, zero = float(entry.scale), int(entry.zero_point)  # type: ignore[arg-type]  # numbers
    low, high = entry.qtype.lowest - zero, entry.qtype.highest - zero
    return scale * float(low), scale * float(high)
