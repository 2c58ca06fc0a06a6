"""Run the nodes of an ONNX graph in torch, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from torch import Tensor

from bitwright.errors import ModelError
from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.learning.torch_graph.table import op_of, why_not

Change = Callable[[Tensor], Tensor]


class Step(NamedTuple):
    """A node, and how it computes."""

    name: str
    run: Callable[..., Any]
    attributes: Attributes
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[str, ...]
    done: tuple[str, ...]
    """Tensors that nothing reads afterwards."""

    def compute(self, known: dict[str, Tensor], arguments: list[Tensor | None]) -> None:
        """Add the outputs to the known tensors, and drop those that nothing reads any more."""
        found = self.run(self.attributes, *arguments)
        given = found if isinstance(found, tuple) else (found,)
        known.update(zip(self.outputs, given, strict=False))
        for name in self.done:
            known.pop(name, None)


class TorchGraph:
    """Some nodes of a graph, in their order, that can be run on tensors.

    Args:
        nodes: of one graph; what they read and do not make is fed or is a constant.
        outputs: names of the tensors to give back.
        opset: the version of the model's operators.
        device: where the constants lie; feeds must lie there too.
        constants: tensors in place of those that the nodes hold.
    """

    def __init__(
        self,
        nodes: Iterable[ir.Node],
        outputs: Iterable[str],
        *,
        opset: int,
        device: str | torch.device = "cpu",
        constants: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._outputs = frozenset(outputs)
        self.constants: dict[str, Tensor] = dict(constants or {})
        nodes = list(nodes)
        for node in nodes:
            if (reason := why_not(node, opset)) is not None:
                raise ModelError(f"node {node.name!r} cannot run in torch: {reason}.")
            for value in node.inputs:
                if value is not None and value.const_value is not None:
                    name = value.name or ""
                    if name not in self.constants:
                        self.constants[name] = as_tensor(value.const_value.numpy(), device)
        self._steps = self._plan(nodes, opset)

    def __len__(self) -> int:
        return len(self._steps)

    def run(
        self,
        feeds: Mapping[str, Tensor],
        *,
        read: Mapping[tuple[str, int], Change] | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the outputs for these feeds.

        `read` changes what single inputs of single nodes see: (node, index) -> a function.
        `constants` stand in for those of the graph.
        """
        known = dict(feeds)
        for step, arguments in self._read(known, read, constants):
            step.compute(known, arguments)
        return {name: known[name] for name in self._outputs}

    def consumers(self, name: str) -> list[Step]:
        """Return the nodes that read a constant as their weight, which is the second input."""
        return [
            step
            for step in self._steps
            if len(step.inputs) > 1 and step.inputs[1] is not None and step.inputs[1].name == name
        ]

    def inputs_of(
        self,
        node: str,
        feeds: Mapping[str, Tensor],
        *,
        read: Mapping[tuple[str, int], Change] | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> list[Tensor | None]:
        """Return what a node reads for these feeds."""
        known = dict(feeds)
        for step, arguments in self._read(known, read, constants):
            if step.name == node:
                return arguments
            step.compute(known, arguments)
        raise ModelError(f"there is no node {node!r} in this segment.")

    def _read(
        self,
        known: Mapping[str, Tensor],
        read: Mapping[tuple[str, int], Change] | None,
        constants: Mapping[str, Tensor] | None,
    ) -> Iterator[tuple[Step, list[Tensor | None]]]:
        """Yield each step with what it reads of the known tensors and of constants."""
        for step in self._steps:
            arguments: list[Tensor | None] = []
            for index, value in enumerate(step.inputs):
                tensor = None
                if value is not None:
                    tensor = _find(value.name or "", known, constants, self.constants)
                    change = read.get((step.name, index)) if read else None
                    tensor = tensor if change is None else change(tensor)
                arguments.append(tensor)
            yield step, arguments

    def _plan(self, nodes: list[ir.Node], opset: int) -> list[Step]:
        last = {v.name or "": i for i, node in enumerate(nodes) for v in node.inputs if v}
        done: list[list[str]] = [[] for _ in nodes]
        for name, index in last.items():
            if name not in self._outputs:
                done[index].append(name)
        return [
            Step(
                node.name or "",
                op_of(node),
                Attributes(node, opset),
                tuple(node.inputs),
                tuple(value.name or "" for value in node.outputs),
                tuple(done[index]),
            )
            for index, node in enumerate(nodes)
        ]


def _find(name: str, *places: Mapping[str, Tensor] | None) -> Tensor:
    for place in places:
        if place is not None and name in place:
            return place[name]
    raise ModelError(f"tensor {name!r} is neither fed nor computed before it is read.")
