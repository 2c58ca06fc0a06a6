"""Ranges of activations, cut at either end where that brings the outputs closer to float.

A range is chosen by what its tensor holds, and not by what becomes of it: behind a GELU all that
lies far below zero is zero, and half of the integers may be spent on it. So the tensors around the
units of most error are quantized alone, over ranges with less and less at one end, and the outputs
of the whole model decide.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import onnx_ir as ir

from bitwright.assess.judge.judgement import Judge
from bitwright.data import Sample
from bitwright.graph import clone_model, iter_values
from bitwright.graph.editing import insert_behind_value
from bitwright.jobs.improve.loop import Attempt, Trail, improve
from bitwright.jobs.improve.mixtures import UnitTable
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.numerics.scales import affine_parameters
from bitwright.plan import QuantPlan, TensorPlan
from bitwright.run import Session

MAX_UNITS = 4
"""How many units are looked at, those of the most error."""
MIN_SHARE = 0.05
"""The share of all error that such a unit has at least."""
MIN_SAVED = 0.05
"""The share of the loss that cutting an end once more must save."""
_KEPT = (0.5, 0.25, 0.125, 0.0625)
"""What is kept of one end of the range, from attempt to attempt."""

Range = tuple[float, float]


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
    units = [unit for unit in table.units if unit.node in worst]
    session = Session(prepared.reference, providers=prepared.providers)
    expected = [session.run(sample) for sample in samples]
    changed: dict[str, TensorPlan] = {}
    for key in dict.fromkeys(_activations(plan, units)):
        cut = _CutRange(prepared, plan.tensors[key], samples, expected)
        found = cut.choose() if cut.is_possible else None
        if found is not None:
            changed[key] = _with_range(plan.tensors[key], found)
            low, high = found
            report(f"{plan.tensors[key].tensor}: range cut to {low:.3g} to {high:.3g}")
    if not changed:
        return plan
    names = ", ".join(entry.tensor for entry in changed.values())
    plan = msgspec.structs.replace(plan, tensors={**plan.tensors, **changed})
    return plan.with_notes([f"ranges cut by the error of the outputs: {names}"])


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
                if entry.scale is not None and not np.ndim(entry.scale) and entry.qtype.is_integer:
                    yield root


def _with_range(entry: TensorPlan, range: Range) -> TensorPlan:
    scale, zero = affine_parameters(*range, entry.qtype)
    return msgspec.structs.replace(
        entry,
        scale=float(scale),
        zero_point=int(zero),
        range=range,
        method="least error of the outputs",
    )


class _CutRange:
    """The float model with one tensor quantized, over a range that each run is given."""

    def __init__(
        self,
        prepared: Prepared,
        entry: TensorPlan,
        samples: Sequence[Sample],
        expected: Sequence[dict[str, np.ndarray]],
    ) -> None:
        self._prepared, self._entry = prepared, entry
        self._samples, self._expected = samples, expected
        model = clone_model(prepared.model)
        value = dict(iter_values(model)).get(entry.tensor)
        # What quantizes an input has no node to stand behind; its range is that of the data.
        self.is_possible = (
            value is not None
            and value.producer() is not None
            and entry.qtype.bits == 8
            and value.dtype == ir.DataType.FLOAT
        )
        if self.is_possible and value is not None:
            self._session = Session(_quantize(model, value, entry), providers=prepared.providers)

    def choose(self) -> Range | None:
        """Return the range of least loss; None: it is the one of the plan."""
        given = _range_of(self._entry)
        ends = [partial(_cut, given=given, end=end) for end in (0, 1)]
        best = improve(given, ends, self._measure, _saves).best
        return None if best is None or best.range == given else best.range

    def _measure(self, range: Range) -> _Cut:
        scale, zero = affine_parameters(*range, self._entry.qtype)
        given = {
            _SCALE: np.asarray(scale, np.float32),
            _ZERO: np.asarray(zero, self._entry.qtype.dtype),
        }
        judge = Judge(self._prepared.reference)
        for sample, expected in zip(self._samples, self._expected, strict=True):
            judge.add(sample, expected, self._session.run({**sample, **given}))
        return _Cut(range, judge.finish().loss)


class _Cut(NamedTuple):
    """A range, and the loss of the outputs with only its tensor quantized."""

    range: Range
    loss: float


def _saves(before: _Cut, after: _Cut) -> bool:
    return after.loss <= (1 - MIN_SAVED) * before.loss


def _cut(
    trail: Trail[_Cut], *, given: Range, end: int
) -> Generator[Attempt[Range], Trail[_Cut], None]:
    """Keep less and less of one end of a range, as long as that helps."""
    for kept in _KEPT:
        assert trail.best is not None  # the range of the plan
        low, high = trail.best.range
        tried = (kept * given[0], high) if end == 0 else (low, kept * given[1])
        if tried == (low, high):
            return
        trail = yield Attempt(tried)
        if trail.last is not trail.best:
            return


_SCALE, _ZERO = "bitwright_scale", "bitwright_zero_point"


def _range_of(entry: TensorPlan) -> Range:
    scale, zero = float(entry.scale), int(entry.zero_point)  # type: ignore[arg-type]  # numbers
    low, high = entry.qtype.lowest - zero, entry.qtype.highest - zero
    return scale * float(low), scale * float(high)


def _quantize(model: ir.Model, value: ir.Value, entry: TensorPlan) -> ir.Model:
    """Put a pair behind a tensor, whose scale and zero point are inputs of the model."""
    scale = ir.Value(name=_SCALE, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    stored = ir.DataType(entry.qtype.onnx_type)
    zero = ir.Value(name=_ZERO, type=ir.TensorType(stored), shape=ir.Shape([]))
    model.graph.inputs.extend([scale, zero])
    label = value.name
    codes = insert_behind_value(
        value, "QuantizeLinear", [scale, zero], renamed=f"{label}_float", name=f"{label}_q"
    ).outputs[0]
    codes.dtype = stored
    insert_behind_value(
        codes, "DequantizeLinear", [scale, zero], renamed=f"{label}_codes", name=f"{label}_d"
    ).outputs[0].dtype = ir.DataType.FLOAT
    return model
