"""Iterate over the graphs of a model, If, Loop and Scan bodies too; qualified tensor names.

A tensor of the main graph is known by its own name. A tensor inside the body of an If, Loop or
Scan is known by its *qualified name*: the path of owner nodes and attributes, a colon, and its name
there:

    conv1_out
    if_7/then_branch:conv1_out
    if_7/then_branch/loop_2/body:hidden

Names repeat between bodies, so only the qualified name is unique. Node names hold slashes and
colons in practice ("/encoder/Conv"), so a qualified name is looked up, never taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import onnx
import onnx_ir as ir

from bitwright.errors import ModelError, did_you_mean

_Item = TypeVar("_Item")

_HOLDERS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""ONNX's own operators that hold graphs; those of others may, too."""


def subgraphs_of(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the graphs that a node holds directly, each with the name of its attribute.

    A list of graphs gets an index: "bodies[0]".
    """
    if not node.domain and node.op_type not in _HOLDERS:  # nearly all nodes, at each iteration
        return
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for index, graph in enumerate(attribute.as_graphs()):
                yield f"{name}[{index}]", graph


def iter_graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph]]:
    """Yield (path, graph) for the main graph (path "") and every body below it, outermost first."""
    yield from iter_from("", model.graph)


def iter_from(path: str, graph: ir.Graph) -> Iterator[tuple[str, ir.Graph]]:
    """Yield (path, graph) for a graph and every body below it, outermost first."""
    yield path, graph
    for index, node in enumerate(graph):
        for attribute, body in subgraphs_of(node):
            owner = node.name or f"{node.op_type}#{index}"
            step = f"{owner}/{attribute}"
            yield from iter_from(f"{path}/{step}" if path else step, body)


def iter_messages(path: str, graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield what `iter_from` does, of a message."""
    yield path, graph
    for index, node in enumerate(graph.node):
        for attribute in node.attribute:
            owner = f"{node.name or f'{node.op_type}#{index}'}/{attribute.name}"
            step = f"{path}/{owner}" if path else owner
            if attribute.HasField("g"):
                yield from iter_messages(step, attribute.g)
            for position, body in enumerate(attribute.graphs):
                yield from iter_messages(f"{step}[{position}]", body)


def outer_inputs(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the tensors that a node reads, those that its bodies read around them included."""
    yield from (value for value in node.inputs if value is not None)
    for _, body in subgraphs_of(node):
        yield from _captured(body, node.graph)


def _captured(body: ir.Graph, home: object) -> Iterator[ir.Value]:
    for node in body:
        yield from (value for value in node.inputs if value is not None and value.graph is home)
        for _, inner in subgraphs_of(node):
            yield from _captured(inner, home)
    yield from (value for value in body.outputs if value.graph is home)


def owner_nodes(model: ir.Model) -> dict[ir.Graph, ir.Node]:
    """Return, for every body in the model, the node that holds it."""
    return {
        body: node
        for _, graph in iter_graphs(model)
        for node in graph
        for _, body in subgraphs_of(node)
    }


def qualified_name(path: str, name: str) -> str:
    """Return the name that tells a tensor apart in the whole model."""
    return f"{path}:{name}" if path else name


def iter_values(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """Yield (qualified name, value) for every named input, initializer and node output."""
    for path, graph in iter_graphs(model):
        seen = set()
        for value in values_of(graph):
            if value.name and value.name not in seen:
                seen.add(value.name)
                yield qualified_name(path, value.name), value


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every input, initializer and node output of a graph, without its bodies."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def reach(starts: Iterable[_Item], step: Callable[[_Item], Iterable[_Item]]) -> dict[_Item, None]:
    """Return these items, and all that `step` leads to from them, each once."""
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        new = dict.fromkeys(item for item in step(waiting.pop()) if item not in found)
        found |= new
        waiting += new
    return found


def find_value(model: ir.Model, name: str) -> ir.Value:
    """Return the value with this qualified name, or raise a ModelError that suggests another."""
    known = []
    for qualified, value in iter_values(model):
        if qualified == name:
            return value
        known.append(qualified)
    raise ModelError(f"the model has no tensor {name!r}.{did_you_mean(name, known)}")
