"""Fine-tune the roundings of weight-only quantization, segment by segment.

AdaRound learns which weights are rounded up and which down; scales and zero points stay as the
rounding left them. SignRound starts from all that the rounding left, and learns scales and zero
points, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from bitwright.errors import ModelError
from bitwright.graph import opset_of
from bitwright.jobs.fine_tuning.sequence import run_segments
from bitwright.jobs.weight_only.layers import PlannedWeight, planned_weights
from bitwright.jobs.weight_only.work import WeightWork
from bitwright.learning.adaround import AdaRoundLearner
from bitwright.learning.fake_quantize import FakeQuantizer
from bitwright.learning.learner import Learner
from bitwright.learning.reconstruction import reconstruct
from bitwright.learning.reports import SegmentReport, require_torch
from bitwright.learning.segment_target import SegmentTarget
from bitwright.learning.segments import segments_to_learn
from bitwright.learning.signround import SignRoundLearner
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.numerics import QuantizedBlocks, as_matrix
from bitwright.plan import QuantPlan
from bitwright.recipe import AdaRound, SignRound
from bitwright.rounding.store import BlockStore
from bitwright.run import LayerwiseRun
from bitwright.support.array_types import Array

WIDE_BITS = 8
"""Weights of so many bits have next to nothing to gain by SignRound; the targets of a language
model's head, which often has 8, would be as large as all of its logits."""


def tune_weights(
    work: WeightWork, plan: QuantPlan, rounded: BlockStore, tuned: BlockStore
) -> list[SegmentReport]:
    """Learn the roundings of `rounded` into `tuned`; weights that are in it already stay.

    Every weight of the plan is in `tuned` in the end, the ones that cannot learn as they were.
    """
    model, progress = work.prepared.model, work.progress
    require_torch(work.compute.device)
    learner = _SegmentLearner(model, plan, rounded, tuned, work.compute.device)
    reports: list[SegmentReport] = []
    if learner.segments:
        with run_segments(
            model,
            model,
            learner.segments,
            islice(work.samples(), plan.recipe.emulate.fine_tune.samples),
            # Read when the model runs, so that layers see what those before them have learned.
            weights={name: w.restored(learner.blocks) for name, w in learner.weights.items()},
            providers=work.prepared.providers,
        ) as inputs:
            for index, floats, quantized in inputs:
                reports.append(learner.learn(index, floats, quantized))
                if progress is not None:
                    progress(len(reports), len(learner.segments))
    for name in plan.weights:
        if name not in tuned:
            tuned.put(name, rounded.get(name))
    return [*reports, *learner.reports_of_fixed()]


class _SegmentLearner:
    """Learns the segments of a model, from the weights of one store into another."""

    def __init__(
        self, model: ir.Model, plan: QuantPlan, rounded: BlockStore, tuned: BlockStore, device: str
    ) -> None:
        method = plan.recipe.fine_tune
        assert isinstance(method, AdaRound | SignRound)
        self._method, self._device = method, device
        self._details = plan.recipe.emulate.fine_tune
        self._rounded, self._tuned = rounded, tuned
        self._opset = opset_of(model)
        # By the name of the value: what nodes read.
        self.weights = {w.value.name or "": w for w in planned_weights(model, plan)}
        learning = [weight for weight in self.weights.values() if not self._is_fixed(weight)]
        readers = {node for weight in learning for node in weight.plan.nodes}
        self.segments = segments_to_learn(model, readers, method)

    def learn(self, index: int, floats: LayerwiseRun, quantized: LayerwiseRun) -> SegmentReport:
        """Let a segment learn, unless it has before or cannot, and store its weights."""
        segment = self.segments[index]
        weights = {name: self.weights[name] for name in segment.reads if name in self.weights}
        mine = {
            name: weight
            for name, weight in weights.items()
            if weight.name not in self._tuned and not self._is_fixed(weight)
        }
        reason = self._why_not(mine.values())
        if reason is not None:
            return SegmentReport(segment.first, len(mine), reason=reason)
        try:
            target = SegmentTarget.of(
                segment,
                quantized.rows(segment.inputs),
                floats.rows(segment.inputs),
                stored={name: w.restore(self.blocks(w.name)) for name, w in weights.items()},
                opset=self._opset,
                device=self._device,
            )
        except ModelError as error:
            return SegmentReport(segment.first, len(mine), reason=str(error).rstrip("."))
        learner, blocks_of = self._learner(mine)
        outcome = reconstruct(target, learner, self._method, self._details, seed=index)
        for name, weight in mine.items():
            kept = self._rounded.get(weight.name) if outcome.constants is None else blocks_of(name)
            self._tuned.put(weight.name, kept)
        return outcome.report(segment.first, len(mine))

    def _learner(
        self, weights: Mapping[str, PlannedWeight]
    ) -> tuple[Learner[Any], Callable[[str], QuantizedBlocks]]:
        """Return what learns these weights, and what gives each as it has learned."""
        if isinstance(self._method, SignRound):
            given = {
                name: (weight.read(), self._rounded.get(weight.name), weight.stored)
                for name, weight in weights.items()
            }
            signed = SignRoundLearner(given, self._method, self._device)
            return signed, signed.blocks
        quantizers = {name: self._with_quantizer(weight) for name, weight in weights.items()}
        learner = AdaRoundLearner(quantizers, self._method, details=self._details)

        def codes(name: str) -> QuantizedBlocks:
            blocks = self._rounded.get(weights[name].name)
            return _codes(weights[name], blocks, learner.hard([name])[name])

        return learner, codes

    def reports_of_fixed(self) -> list[SegmentReport]:
        """Return why weights do not learn that the method leaves."""
        reason = f"weights of {WIDE_BITS} bits have next to nothing to learn by signround"
        fixed = (weight for weight in self.weights.values() if self._is_fixed(weight))
        return [SegmentReport(weight.plan.nodes[0], 1, reason=reason) for weight in fixed]

    def blocks(self, name: str) -> QuantizedBlocks:
        """Return a weight as it was learned, or else as it was rounded."""
        return (self._tuned if name in self._tuned else self._rounded).get(name)

    def _is_fixed(self, weight: PlannedWeight) -> bool:
        return isinstance(self._method, SignRound) and weight.plan.bits >= WIDE_BITS

    def _why_not(self, weights: Iterable[PlannedWeight]) -> str | None:
        """Return why these weights of a segment do not learn, None where they do."""
        reason: str | None = "its weights have learned before"
        for weight in weights:
            reason = None
            if weight.value.dtype is not ir.DataType.FLOAT:
                return f"weights of {weight.value.dtype} do not learn"
            zero_points = self._rounded.get(weight.name).zero_points
            if zero_points is not None and zero_points.dtype.kind == "f":
                return "its zero points are no integers"
        return reason

    def _with_quantizer(self, weight: PlannedWeight) -> tuple[torch.Tensor, FakeQuantizer]:
        """Return a float weight, and the values that its scales and zero points leave it."""
        parts = [weight.read(), *_per_weight(self._rounded.get(weight.name))]
        given, scale, zero_point = (
            as_tensor(np.ascontiguousarray(weight.stored(a)), self._device).float() for a in parts
        )
        return given, FakeQuantizer(scale, zero_point, 0, float((1 << weight.plan.bits) - 1))


def _per_weight(blocks: QuantizedBlocks) -> tuple[Array, Array]:
    """Return the scale and the zero point of each weight, [K, N]."""
    rows, format = blocks.shape[0], blocks.format
    scales = format.per_weight(blocks.scales.astype(np.float32), rows)
    if blocks.zero_points is None:
        return scales, np.full_like(scales, format.middle)
    return scales, format.per_weight(blocks.zero_points.astype(np.float32), rows)


def _codes(
    planned: PlannedWeight, blocks: QuantizedBlocks, learned: torch.Tensor
) -> QuantizedBlocks:
    """Return the codes of a weight that lies on its quantizer."""
    array = learned.cpu().numpy()
    scales, zero_points = _per_weight(blocks)
    codes = np.rint(as_matrix(array, transposed=planned.transposed) / scales + zero_points)
    return QuantizedBlocks(blocks.format, codes.astype(np.uint8), blocks.scales, blocks.zero_points)
