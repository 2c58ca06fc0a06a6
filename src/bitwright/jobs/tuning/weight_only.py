"""Weights of language models: bits for each, so that a metric is kept in as few bytes as possible.

What a weight loses in few bits is measured where its branch ends, as for mixed recipes; with more
bits it loses by their square less. The rest is the search along the front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np

from bitwright.data import Sample
from bitwright.decide.fallback import fall_back
from bitwright.graph import written_size
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.improve.front import Edge, Option
from bitwright.jobs.improve.journal import Journal
from bitwright.jobs.improve.mixtures import Made
from bitwright.jobs.improve.scorer import Runnable
from bitwright.jobs.improve.states import Unit
from bitwright.jobs.opening import Prepared
from bitwright.jobs.qat import open_for_plan
from bitwright.jobs.tuning.mixtures import CHANGE_COST, keep_figures
from bitwright.jobs.tuning.request import TuneRequest
from bitwright.jobs.weight_only.job import write_weight_only
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.mixed_bits import measure_losses
from bitwright.plan import Fallback, QuantPlan

WIDE = 8
"""The bits that a weight of fewer can have instead."""


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What each weight loses in its own bits, how many numbers and scales it has, and its bytes."""

    units: tuple[Unit, ...]
    bits: dict[str, int]
    losses: dict[str, float]
    sizes: dict[str, int]
    blocks: dict[str, int]
    float_bytes: dict[str, int]


@dataclass
class WeightOnlyMixtures:
    """The weights of a weight-only plan: in their own bits, in eight, or in float."""

    request: TuneRequest
    plan: QuantPlan
    name: str
    journal: Journal
    samples: Sequence[Sample]
    calibration: Calibration
    _measured: _Figures | None = field(default=None, init=False)

    @cached_property
    def _prepared(self) -> Prepared:
        return open_for_plan(self.request.source, self.plan, self.request.providers)

    @property
    def _figures(self) -> _Figures:
        if self._measured is None:
            key = f"losses/{self.name}"
            self._measured = keep_figures(self.journal, key, _Figures, self._measure)
        return self._measured

    def _measure(self) -> _Figures:
        model = self._prepared.model
        weights = [
            weight
            for weight in planned_weights(model, self.plan)
            if weight.plan.bits < WIDE and self.plan.nodes[weight.plan.nodes[0]].op != "Gather"
        ]
        self.request.report(f"measuring what {len(weights)} weights lose")
        losses = measure_losses(model, weights, self.samples, providers=self.request.providers)
        found = {w.plan.nodes[0]: w for w in weights if w.name in losses}
        sizes = {node: int(np.prod(w.shape, dtype=np.int64)) for node, w in found.items()}
        return _Figures(
            units=tuple(
                Unit(node=node, op=self.plan.nodes[node].op, nodes=w.plan.nodes)
                for node, w in found.items()
            ),
            bits={node: w.plan.bits for node, w in found.items()},
            losses={node: losses[w.name] for node, w in found.items()},
            sizes=sizes,
            blocks={node: -(-sizes[node] // w.plan.block_size) for node, w in found.items()},
            float_bytes={node: _float_bytes(w) for node, w in found.items()},
        )

    @property
    def stays_float(self) -> bool:
        """Whether the plan quantizes nothing."""
        return not self.plan.weights

    @property
    def is_measured(self) -> bool:
        """Whether it is known what weights cost, and so which mixtures there are."""
        return self._measured is not None

    @property
    def units(self) -> Sequence[Unit]:
        """The weights that have states, by the nodes that read them."""
        return self._figures.units

    @property
    def options(self) -> list[list[Option]]:
        """For each weight its own bits, eight bits and float, with their bytes and errors."""
        figures = self._figures
        change = CHANGE_COST * sum(n * figures.bits[name] / 8 for name, n in figures.sizes.items())
        found = []
        for unit in self.units:
            size, loss = figures.sizes[unit.node], figures.losses[unit.node]
            bits = figures.bits[unit.node]
            scales = 4.0 * figures.blocks[unit.node]
            found.append(
                [
                    Option(f"w{bits}", size * bits / 8 + scales, loss),
                    Option("w8", size + scales + change, loss / 4 ** (WIDE - bits)),
                    Option("float", figures.float_bytes[unit.node] + change, 0.0),
                ]
            )
        return found

    @property
    def edges(self) -> Sequence[Edge]:
        """Nothing is converted between weights."""
        return []

    @cached_property
    def fixed(self) -> float:
        """The bytes of everything else."""
        size = float(written_size(self.make({}).model))
        return size - sum(options[0].cost for options in self.options)

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """The weights that lose most, and their shares of it."""
        losses = self._figures.losses
        summed = sum(losses.values()) or 1.0
        ranked = sorted(losses, key=lambda name: -losses[name])[:5]
        return tuple((name, losses[name] / summed) for name in ranked)

    def make(self, states: Mapping[str, str]) -> Made:
        """Make a model; weights that are not named have the plan's bits."""
        plan = self.plan
        changes: tuple[tuple[str, Fallback], ...] = (("w8", "int8"), ("float", "float"))
        for state, to in changes:
            nodes = [
                node
                for unit in (self.units if states else ())
                if states.get(unit.node) == state
                for node in unit.nodes
            ]
            if nodes:
                plan = fall_back(self._prepared.model, plan, nodes, to)
        result = write_weight_only(self._prepared, plan, self.calibration)
        return Made(None, result.model, self.request.providers, plan=result.plan)

    def probes(self) -> Mapping[str, Callable[[], Runnable]]:
        """Activations are float: there is nothing to tell apart."""
        return {}


def _float_bytes(weight: PlannedWeight) -> int:
    """Return the bytes of a weight as it was given, in 32 bits or 16."""
    tensor = weight.value.const_value
    assert tensor is not None  # it is a constant
    return tensor.nbytes
