"""Weights of language models: bits for each, so that a metric is kept in as few bytes as possible.

What a weight loses in few bits is measured where its branch ends, as for mixed recipes; with more
bits it loses by their square less. The rest is the search along the front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bitwright.data import Sample
from bitwright.graph import written_size
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.front import Option
from bitwright.jobs.improve.mixtures import Made, Mixtures, UnitTable
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.mixtures import CHANGE_COST
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.weight_only.job import write_weight_only
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.mixed_bits import measure_losses

WIDE = 8
"""The bits that a weight of fewer can have instead."""


@dataclass
class WeightOnlyMixtures(Mixtures):
    """The weights of a weight-only plan: in their own bits, in eight, or in float."""

    request: TuneRequest
    samples: Sequence[Sample]
    calibration: Calibration

    @cached_property
    def _prepared(self) -> Prepared:
        return open_for_plan(self.request.source, self.plan, self.request.providers)

    def measure(self) -> UnitTable:
        """Measure what each weight loses in its own bits; in others it follows from that."""
        model, nodes = self._prepared.model, self.plan.nodes
        weights = [
            weight
            for weight in planned_weights(model, self.plan)
            if weight.plan.bits < WIDE and nodes[weight.plan.nodes[0]].op != "Gather"
        ]
        self.request.report(f"measuring what {len(weights)} weights lose")
        losses = measure_losses(model, weights, self.samples, providers=self.request.providers)
        # Of weights that one node reads, the last.
        found = {w.plan.nodes[0]: w for w in weights if w.name in losses}
        change = CHANGE_COST * sum(math.prod(w.shape) * w.plan.bits / 8 for w in found.values())
        options = tuple(_options(w, losses[w.name], change) for w in found.values())
        size = float(written_size(self.make({}).model))
        return UnitTable(
            units=tuple(
                Unit(node=node, op=nodes[node].op, nodes=w.plan.nodes) for node, w in found.items()
            ),
            options=options,
            fixed=size - sum(states[0].cost for states in options),
        )

    def make(self, states: Mapping[str, str]) -> Made:
        """Make a model; weights that are not named have the plan's bits."""
        plan = self.planned(self._prepared, states)
        result = write_weight_only(self._prepared, plan, self.calibration)
        return Made(None, result.model, self.request.providers, plan=result.plan)


def _options(weight: PlannedWeight, loss: float, change: float) -> tuple[Option, ...]:
    """Return a weight in its own bits, eight bits and float, with their bytes and errors."""
    bits, size = weight.plan.bits, math.prod(weight.shape)
    scales = 4.0 * -(-size // weight.plan.block_size)
    tensor = weight.value.const_value
    assert tensor is not None  # it is a constant
    return (
        Option(f"w{bits}", size * bits / 8 + scales, loss),
        Option("w8", size + scales + change, loss / 4 ** (WIDE - bits)),
        Option("float", tensor.nbytes + change, 0.0),  # as it was given, in 32 bits or 16
    )
