"""Errors of parts of a model by gradients: what rounding one of them changes the outputs by.

For a random direction of the outputs, one pass back through the graph gives how far they move along
it with each part's tensor. Times what rounding changes that tensor by, squared, the mean over
directions is the part's noise at the outputs over their signal, to first order (the Fisher score of
ModelOpt and HAWQ, with the norm of the outputs for a loss). A few passes give all parts at once,
where exact errors take a run for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from bitwright.errors import ModelError
from bitwright.graph import opset_of
from bitwright.learning.torch_graph.executor import TorchGraph
from bitwright.numerics.quantize import fake_quantize
from bitwright.plan import QuantPlan
from bitwright.support.array_types import Array

DIRECTIONS = 4
_SEED = 0


class Part(NamedTuple):
    """Nodes of the float model that are quantized together, and the tensor that they make."""

    nodes: Sequence[ir.Node]
    output: str


def attribute_errors(
    model: ir.Model,
    plan: QuantPlan,
    parts: Mapping[str, Part],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """Return the error of the outputs that each part makes by itself, to first order.

    A ModelError says which node torch cannot run, or that no output has a gradient.
    """
    opset = opset_of(model)
    rounded = {name: _RoundedPart(plan, part, opset) for name, part in parts.items()}
    outputs = [value.name or "" for value in model.graph.outputs]
    inputs = {value.name for value in model.graph.inputs}
    read = {name for part in rounded.values() for name, _ in part.reads} - inputs
    wanted = {*outputs, *read, *(part.output for part in parts.values())}
    graph = TorchGraph(list(model.graph), wanted, opset=opset)
    draws = torch.Generator().manual_seed(_SEED)
    errors = dict.fromkeys(parts, 0.0)
    for sample in samples:
        feeds = {name: torch.from_numpy(np.array(array)) for name, array in sample.items()}
        for tensor in feeds.values():
            tensor.requires_grad_(tensor.is_floating_point())
        try:
            known = feeds | graph.run(feeds)
        except RuntimeError as error:  # memory, mostly
            raise ModelError(f"torch cannot run the model: {error}.") from error
        # What does not depend on the inputs, or is an integer, has no gradient.
        moving = [name for name, part in parts.items() if known[part.output].requires_grad]
        targets = [known[parts[name].output] for name in moving]
        ends = [known[name] for name in outputs if known[name].requires_grad]
        if not ends:
            raise ModelError("no output of the model has a gradient: all are integers.")
        found = [
            torch.autograd.grad(_probe(ends, draws), targets, retain_graph=True, allow_unused=True)
            for _ in range(DIRECTIONS)
        ]
        with torch.no_grad():
            for index, name in enumerate(moving):
                change = rounded[name].change(known)
                moved = [float((g[index] * change).sum()) for g in found if g[index] is not None]
                errors[name] += sum(one**2 for one in moved) / DIRECTIONS / len(samples)
    return errors


def _probe(ends: Sequence[torch.Tensor], draws: torch.Generator) -> torch.Tensor:
    """Return how far the outputs lie along a random direction, each over its own length."""
    along = [
        (torch.randn(end.shape, generator=draws) * end).sum() / end.detach().norm().clamp_min(1e-30)
        for end in ends
    ]
    return torch.stack(along).sum() / len(ends) ** 0.5


class _RoundedPart:
    """A part that can be run by itself on rounded inputs and weights."""

    def __init__(self, plan: QuantPlan, part: Part, opset: int) -> None:
        self._plan, self._output = plan, part.output
        self._graph = TorchGraph(part.nodes, [part.output], opset=opset)
        made = {value.name for node in part.nodes for value in node.outputs}
        self._weights: dict[str, torch.Tensor] = {}
        self.reads: list[tuple[str, str | None]] = []
        """Tensors that it reads, and the entries that they are rounded by."""
        for node in part.nodes:
            name = node.name or ""
            keys = plan.nodes[name].inputs if name in plan.nodes else ()
            for index, value in enumerate(node.inputs):
                key = keys[index] if index < len(keys) else None
                if value is None or value.name is None or value.name in made:
                    continue
                if value.const_value is None:
                    self.reads.append((value.name, key))
                elif key is not None and plan.tensors[key].role == "weight":
                    array = self._round(key, value.const_value.numpy())
                    self._weights[value.name] = torch.from_numpy(array)
        names = [node.name or "" for node in part.nodes]
        written = [plan.nodes[name].outputs for name in names if name in plan.nodes]
        self._key = next((keys[0] for keys in reversed(written) if keys and keys[0]), None)

    def change(self, known: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what rounding changes the part's tensor by, where all before it is float."""
        feeds = {}
        for name, key in self.reads:
            tensor = known[name].detach()
            feeds[name] = (
                tensor if key is None else torch.from_numpy(self._round(key, tensor.numpy()))
            )
        result = self._graph.run(feeds, constants=self._weights)[self._output]
        if self._key is not None:
            result = torch.from_numpy(self._round(self._key, result.numpy()))
        return result - known[self._output].detach()

    def _round(self, key: str, array: Array) -> Array:
        found = self._plan.parameters(key)
        shown = fake_quantize(
            array,
            found.scale,
            found.zero_point,
            found.qtype,
            axis=found.axis,
            block_size=found.block_size,
        )
        return np.asarray(shown, np.float32)
