"""The target of a segment: its inputs in both models, its outputs in float (needs torch).

The segment reads what the quantized model before it gives, and is compared with what the float
model computes from float inputs. So it also corrects errors that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bitwright.learning.activation_scales import ActivationScales
from bitwright.learning.layer_error import LayerError, layer_error
from bitwright.learning.learner import Tensors
from bitwright.learning.segments import Segment
from bitwright.learning.torch_graph.executor import TorchGraph
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.support.array_types import Array

Constants = Mapping[str, Tensor]
Change = Callable[[Tensor], Tensor]
Rows = Mapping[str, Iterable[Array]]
"""Tensor -> what it holds, sample by sample."""


class SegmentTarget:
    """A segment with what it reads and what it should give.

    Args:
        graph: the segment.
        quantized: what it reads in the quantized model, sample by sample.
        floats: what it reads in the float model.
        fixed: constants as they are stored, for all that do not learn.
        read: the quantizers of what single nodes read.
        outputs: the quantizers of outputs, where those are to be compared behind them.
        scales: those of activations that learn, which `read` quantizes with.
    """

    def __init__(
        self,
        graph: TorchGraph,
        quantized: Sequence[Tensors],
        floats: Sequence[Tensors],
        *,
        fixed: Constants | None = None,
        read: Mapping[tuple[str, int], Change] | None = None,
        outputs: Mapping[str, Change] | None = None,
        scales: ActivationScales | None = None,
    ) -> None:
        self._graph = graph
        self.scales = scales or ActivationScales({})
        self.fixed = dict(fixed or {})
        self._read = dict(read or {})
        self._output_quantizers = dict(outputs or {})
        self.quantized, self.floats = list(quantized), list(floats)
        with torch.no_grad():
            self.targets = [graph.run(sample) for sample in self.floats]
        self.count = len(self.targets)
        self.rows = self._stack()

    @classmethod
    def of(  # noqa: PLR0913 - a segment with all that it reads and changes
        cls,
        segment: Segment,
        quantized: Rows,
        floats: Rows,
        *,
        stored: Mapping[str, Array],
        opset: int,
        device: str,
        read: Mapping[tuple[str, int], Change] | None = None,
        outputs: Mapping[str, Change] | None = None,
        scales: ActivationScales | None = None,
    ) -> Self:
        """Return the target of a model's segment; an error where torch cannot run a node."""
        graph = TorchGraph(segment.nodes, segment.outputs, opset=opset, device=device)
        feeds = (
            [
                {n: as_tensor(a, device) for n, a in zip(segment.inputs, row, strict=True)}
                for row in zip(*(rows[name] for name in segment.inputs), strict=True)
            ]
            for rows in (quantized, floats)
        )
        fixed = {name: as_tensor(array, device) for name, array in stored.items()}
        return cls(graph, *feeds, fixed=fixed, read=read, outputs=outputs, scales=scales)

    def _stack(self) -> int:
        """Concatenate all samples where the segment computes each row by itself.

        Returns the rows of a sample, or 0 where samples have to be run one by one.
        """
        first = [self.quantized[0], self.targets[0]]
        shapes = [{n: t.shape for n, t in part.items()} for part in first]
        sizes = {shape[0] if shape else -1 for part in shapes for shape in part.values()}
        if len(sizes) != 1 or -1 in sizes or self.count < 2:
            return 0
        for sample, target in zip(self.quantized, self.targets, strict=True):
            if shapes != [{n: t.shape for n, t in part.items()} for part in (sample, target)]:
                return 0
        try:
            with torch.no_grad():
                both = self._graph.run(_cat(self.floats[:2]))
        except (RuntimeError, ValueError, IndexError):
            # A shape inside of the segment holds for one sample only, or one is fed to it.
            return 0
        apart = _cat(self.targets[:2])
        for name, tensor in apart.items():
            if both[name].shape != tensor.shape:
                return 0
            if not torch.allclose(both[name], tensor, rtol=1e-3, atol=1e-4):
                return 0
        self.quantized, self.floats, self.targets = (
            [_cat(part)] for part in (self.quantized, self.floats, self.targets)
        )
        return sizes.pop()

    def batches(
        self, samples: Tensor, *, floats: bool = True
    ) -> list[tuple[Tensors, Tensors, Tensors]]:
        """Return (quantized inputs, float inputs, targets), as one batch where they can be.

        Without `floats`, the inputs of the float model may be missing.
        """
        if not self.rows:
            return [(self.quantized[i], self.floats[i], self.targets[i]) for i in samples.tolist()]
        device = next(iter(self.targets[0].values())).device
        places = samples[:, None] * self.rows + torch.arange(self.rows)
        places = places.reshape(-1).to(device)
        given, plain, targets = (
            {name: tensor.index_select(0, places) for name, tensor in part.items()}
            for part in (self.quantized[0], self.floats[0] if floats else {}, self.targets[0])
        )
        return [(given, plain, targets)]

    def run(self, feeds: Tensors, constants: Constants) -> Tensors:
        """Return the quantized segment's outputs; shapes and indices among them are not learned."""
        found = self._graph.run(feeds, read=self._read, constants={**self.fixed, **constants})
        return {
            n: self._output_quantizers[n](t) if n in self._output_quantizers else t
            for n, t in found.items()
            if t.is_floating_point()
        }

    def layer(
        self,
        name: str,
        constants: Constants,
        samples: Tensor,
        ratio: float,
        generator: Any,
        *,
        learns_bias: bool = False,
    ) -> LayerError | None:
        """Return the error of the one layer that reads a weight; None where it is not linear.

        The layer reads what the segment gives it with these constants.
        """
        consumers = self._graph.consumers(name)
        weight = self.fixed.get(name)
        if len(consumers) != 1 or weight is None:
            return None
        consumer = consumers[0]
        found = layer_error(consumer.attributes, weight, learns_bias=learns_bias)
        if found is None:
            return None
        known = {**self.fixed, **constants}
        with torch.no_grad():
            for part in samples.split(8):
                for quantized, floats, _ in self.batches(part):
                    feeds = mix(quantized, floats, ratio, generator)
                    both = (
                        self._graph.inputs_of(consumer.name, floats),
                        self._graph.inputs_of(
                            consumer.name, feeds, read=self._read, constants=known
                        ),
                    )
                    wanted, given = (consumer.run(consumer.attributes, *reads) for reads in both)
                    found.add(both[1][0], residual=wanted - given)
                if found.is_full:
                    break
        found.finish(self._graph.constants[name].to(weight.dtype) - weight)
        return found

    @property
    def is_one_node(self) -> bool:
        """Whether the segment is nothing but a layer: what is best for that is best for it."""
        return len(self._graph) == 1 and not self._output_quantizers

    def products(self, names: Iterable[str], samples: int) -> float:
        """Return about how many products these weights are in, for some samples."""
        first = [part[0] for part in (self.quantized, self.targets)]
        places = [
            tensor.numel() / tensor.shape[-1 if tensor.ndim == 3 else 1]
            for part in first
            for tensor in part.values()
            if tensor.ndim > 1 and tensor.numel()
        ]
        stacked = self.count if self.rows else 1
        weights = sum(self.fixed[name].numel() for name in names if name in self.fixed)
        return float(max(places, default=1) / stacked * weights * samples)

    def distance(self, constants: Constants, samples: Tensor) -> float:
        """Return the mean of what `reconstruct` minimizes, over some of these samples."""
        with torch.no_grad():
            batches = self.batches(samples[:64], floats=False)
            total = 0.0
            for quantized, _, targets in batches:
                found = self.run(quantized, constants)
                total += sum(float(distance_between(found[name], targets[name])) for name in found)
            return total / len(batches)

    def error(self, constants: Constants, samples: Tensor) -> float:
        """Return the mean squared error over these samples."""
        total, count = 0.0, 0
        with torch.no_grad():
            for part in samples.split(8):
                for quantized, _, targets in self.batches(part, floats=False):
                    for name, tensor in self.run(quantized, constants).items():
                        total += float((tensor - targets[name]).double().square().sum())
                        count += tensor.numel()
        return total / max(count, 1)


def distance_between(found: Tensor, target: Tensor) -> Tensor:
    """Return the squared error, summed over channels, mean over all else.

    >>> distance_between(torch.ones(4, 3), torch.zeros(4, 3))
    tensor(3.)
    """
    squares = (found - target).square()
    if squares.ndim < 2:
        return squares.mean()
    # Sequences have their channels last, images second.
    return squares.sum(-1 if squares.ndim == 3 else 1).mean()


def mix(quantized: Tensors, floats: Tensors, ratio: float, generator: Any) -> Tensors:
    """Return what the quantized model gives; for part of the elements what the float one does."""
    if ratio >= 1:
        return quantized
    mixed = {}
    for name, tensor in quantized.items():
        mixed[name] = tensor
        if tensor.is_floating_point():
            chance = torch.rand(tensor.shape, generator=generator).to(tensor.device)
            mixed[name] = torch.where(chance < ratio, tensor, floats[name])
    return mixed


def _cat(samples: Sequence[Tensors]) -> Tensors:
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}
