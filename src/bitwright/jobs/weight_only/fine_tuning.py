"""Weights in blocks of few bits, learned so that the layers around them come closer to float.

Scales and zero points stay as the rounding left them; what is learned is which weights are rounded
up and which down, for all layers between two places that a single tensor passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph import opset_of
from bitwright.jobs.weight_only.layers import Site, weight_sites
from bitwright.learning.reports import SegmentReport, require_torch
from bitwright.learning.segments import Segment, segments_to_learn
from bitwright.numerics.blocks import QuantizedBlocks
from bitwright.observe import LayerInputs, LayerwiseRun
from bitwright.plan import QuantPlan
from bitwright.recipe import AdaRound
from bitwright.rounding import BlockStore

if TYPE_CHECKING:
    import torch

    from bitwright.learning.grid import Grid

__all__ = ["tune_weights"]

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def tune_weights(
    model: ir.Model,
    plan: QuantPlan,
    samples: Callable[[], Iterable[Feeds]],
    rounded: BlockStore,
    tuned: BlockStore,
    *,
    device: str = "cpu",
    providers: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SegmentReport]:
    """Learn the roundings of `rounded` into `tuned`; weights that are in it already stay.

    Every weight of the plan is in `tuned` in the end, the ones that cannot learn as they were.
    `samples` gives them anew each time it is called: they are read twice.
    """
    method = plan.recipe.fine_tune
    assert isinstance(method, AdaRound)
    require_torch(device)
    session = _Session(model, plan, method, rounded, tuned, device)
    reports = []
    starts = list(dict.fromkeys(block.first for block in session.blocks))
    if starts:
        walks = [
            LayerwiseRun(model, starts, islice(samples(), method.samples), providers=providers)
            for _ in range(2)
        ]
        with walks[0] as floats, walks[1] as quantized:
            for site in session.sites.values():
                quantized.weights[site.value.name or ""] = session.restored(site)
            for float_stop, stop in zip(floats, quantized, strict=True):
                for index, block in enumerate(session.blocks):
                    if block.first == stop.node:
                        reports.append(session.learn(index, float_stop, stop))
                        if progress is not None:
                            progress(len(reports), len(session.blocks))
    for name in plan.weights:
        if name not in tuned:
            tuned.put(name, rounded.get(name))
    return reports


class _Session:
    """The blocks of a model, and where their weights are kept."""

    def __init__(
        self,
        model: ir.Model,
        plan: QuantPlan,
        method: AdaRound,
        rounded: BlockStore,
        tuned: BlockStore,
        device: str,
    ) -> None:
        self._method, self._device = method, device
        self._rounded, self._tuned = rounded, tuned
        self._opset = opset_of(model)
        # By the name of the value: what nodes read.
        self.sites = {site.value.name or "": site for site in weight_sites(model, plan)}
        readers = {node for site in self.sites.values() for node in site.plan.nodes}
        self.blocks: list[Segment] = segments_to_learn(model, readers, method)

    def learn(self, index: int, floats: LayerInputs, quantized: LayerInputs) -> SegmentReport:
        """Let a block learn, unless it has before, and go on with its weights as they are then."""
        from bitwright.learning.adaround import AdaRoundLearner
        from bitwright.learning.reconstruction import reconstruct
        from bitwright.learning.segment_target import SegmentTarget
        from bitwright.learning.torch_graph import TorchGraph, as_tensor

        block = self.blocks[index]
        read = [value.name or "" for node in block.nodes for value in node.inputs if value]
        sites = [self.sites[name] for name in dict.fromkeys(read) if name in self.sites]
        mine = [site for site in sites if site.name not in self._tuned]
        report = SegmentReport(block.first, len(mine), reason="its weights have learned before")
        if reason := next((r for r in map(self._why_not, mine) if r is not None), None):
            return SegmentReport(block.first, len(mine), reason=reason)
        if mine:
            try:
                graph = TorchGraph(
                    block.nodes, block.outputs, opset=self._opset, device=self._device
                )
            except ModelError as error:
                return SegmentReport(block.first, len(mine), reason=str(error).rstrip("."))
            target = SegmentTarget(
                graph,
                self._feeds(block, quantized),
                self._feeds(block, floats),
                fixed={
                    site.value.name or "": as_tensor(site.restore(self._blocks(site)), self._device)
                    for site in sites
                },
            )
            weights = {site.value.name or "": self._on_grid(site) for site in mine}
            learner = AdaRoundLearner(weights, self._method)
            outcome = reconstruct(target, learner, self._method, seed=index)
            learned = outcome.constants or {}
            for site in mine:
                found = learned.get(site.value.name or "")
                blocks = self._rounded.get(site.name)
                self._tuned.put(site.name, blocks if found is None else _codes(site, blocks, found))
            report = SegmentReport(
                block.first, len(mine), outcome.before, outcome.after, outcome.steps, bool(learned)
            )
        for site in sites:
            quantized.put_weight(site.value.name or "", self.restored(site))
        return report

    def restored(self, site: Site) -> ir.LazyTensor:
        """Return a weight as the model would hold it, read when the model runs."""
        assert site.value.dtype is not None and site.value.shape is not None
        return ir.LazyTensor(
            lambda: ir.tensor(np.ascontiguousarray(site.restore(self._blocks(site)))),
            dtype=site.value.dtype,
            shape=ir.Shape(site.value.shape),
            name=site.value.name,
            cache=False,
        )

    def _blocks(self, site: Site) -> QuantizedBlocks:
        return (self._tuned if site.name in self._tuned else self._rounded).get(site.name)

    def _why_not(self, site: Site) -> str | None:
        if site.value.dtype is not ir.DataType.FLOAT:
            return f"weights of {site.value.dtype} do not learn"
        zero_points = self._rounded.get(site.name).zero_points
        if zero_points is not None and zero_points.dtype.kind == "f":
            return "its zero points are no integers"
        return None

    def _on_grid(self, site: Site) -> tuple[torch.Tensor, Grid]:
        """Return a float weight, and the values that its scales and zero points leave it."""
        from bitwright.learning.grid import Grid
        from bitwright.learning.torch_graph import as_tensor

        scales, zero_points = _per_weight(self._rounded.get(site.name))
        parts = [site.read(), scales, zero_points]
        weight, scale, zero_point = (
            as_tensor(np.ascontiguousarray(a.T if site.transposed else a), self._device).float()
            for a in parts
        )
        return weight, Grid(scale, zero_point, 0, float((1 << site.plan.bits) - 1))

    def _feeds(self, block: Segment, stop: LayerInputs) -> list[dict[str, torch.Tensor]]:
        from bitwright.learning.torch_graph import as_tensor

        rows = zip(*(stop.values(name) for name in block.inputs), strict=True)
        return [
            {n: as_tensor(a, self._device) for n, a in zip(block.inputs, row, strict=True)}
            for row in rows
        ]


def _per_weight(blocks: QuantizedBlocks) -> tuple[Array, Array]:
    """Return the scale and the zero point of each weight, [K, N]."""
    rows, format = blocks.shape[0], blocks.format
    scales = format.per_weight(blocks.scales.astype(np.float32), rows)
    if blocks.zero_points is None:
        return scales, np.full_like(scales, format.middle)
    return scales, format.per_weight(blocks.zero_points.astype(np.float32), rows)


def _codes(site: Site, blocks: QuantizedBlocks, learned: torch.Tensor) -> QuantizedBlocks:
    """Return the codes of a weight that lies on its grid."""
    array = learned.cpu().numpy()
    scales, zero_points = _per_weight(blocks)
    codes = np.rint((array.T if site.transposed else array) / scales + zero_points)
    return QuantizedBlocks(blocks.format, codes.astype(np.uint8), blocks.scales, blocks.zero_points)
