"""The graph that ONNX Runtime optimized, and the node of the model behind each of its nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from bitwright.graph import NameScope, clone_model
from bitwright.run.session import Level, Session
from bitwright.support.scratch import ScratchFolder

# What the runtime adds to the name of a node that it rewrites.
_ADDED = re.compile(r"^fused |(?:_token_\d+|_nchwc|/duplicated|/\w+Fusion)+$")

_SIGNED_ENTRY = "session.qdqisint8allowed"


@dataclass(frozen=True, slots=True)
class OptimizedModel:
    """A model as the runtime optimized it, beside the one that it was given."""

    source: ir.Model
    """The model as given, each node with a name of its own."""
    model: ir.Model

    def origins(self) -> dict[ir.Node, ir.Node]:
        """Return node of the optimized graph -> the node that it was; the runtime's own lack."""
        given = list(self.source.graph.all_nodes())
        named = {node.name: node for node in given}
        makers = {value.name: node for node in given for value in node.outputs}
        found = {}
        for node in self.model.graph.all_nodes():
            origin = _origin(node, named, makers)
            if origin is not None:
                found[node] = origin
        return found


def optimize_model(
    model: ir.Model,
    *,
    level: Level = "extended",
    providers: Sequence[str] | None = None,
    signed_kernels: bool | None = None,
) -> OptimizedModel:
    """Let ONNX Runtime optimize a model and return what came out; nothing stays on disk.

    `signed_kernels` says whether the CPU to optimize for has kernels for int8 activations: Arm
    has, and for x86 the runtime turns them into uint8. None means the CPU of this machine.

    >>> x, y = ir.val("x", ir.DataType.FLOAT, [3]), ir.val("y", ir.DataType.FLOAT, [3])
    >>> same = ir.node("Identity", [x])
    >>> relu = ir.node("Relu", same.outputs, outputs=[y], name="activation")
    >>> graph = ir.Graph([x], [y], nodes=[same, relu], name="g", opset_imports={"": 17})
    >>> found = optimize_model(ir.Model(graph, ir_version=8))
    >>> [(now.op_type, was.name) for now, was in found.origins().items()]
    [('Relu', 'activation')]
    """
    named = name_nodes(model)
    with ScratchFolder("optimized") as scratch:
        path = scratch.path / "optimized.onnx"
        entries = {} if signed_kernels is None else {_SIGNED_ENTRY: str(int(signed_kernels))}
        Session(
            named, level=level, threads=1, providers=providers, optimized_to=path, entries=entries
        )
        return OptimizedModel(named, read_optimized(path))


def read_optimized(path: Path) -> ir.Model:
    """Read what the runtime wrote: the graph and its constants, but for those above a megabyte."""
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = None  # its file goes with the folder
    return model


def name_nodes(model: ir.Model) -> ir.Model:
    """Return a copy in which every node has a name, and no two the same."""
    copy = clone_model(model)
    scope = NameScope(copy)
    seen: set[str] = set()
    for index, node in enumerate(copy.graph.all_nodes()):
        if not node.name or node.name in seen:
            node.name = scope.fresh(node.name or f"{node.op_type}_{index}")
        seen.add(node.name)
    return copy


def _origin(
    node: ir.Node, named: Mapping[str | None, ir.Node], makers: Mapping[str | None, ir.Node]
) -> ir.Node | None:
    name = node.name or ""
    while name not in named and (shorter := _ADDED.sub("", name)) != name:
        name = shorter
    if name in named:
        return named[name]
    if name in makers:  # a convolution in the runtime's own layout has the name of its result
        return makers[name]
    # A fusion under a new name still makes the tensor that the last of its nodes made.
    return next((makers[value.name] for value in node.outputs if value.name in makers), None)
