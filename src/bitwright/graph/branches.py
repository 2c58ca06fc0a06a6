"""Branches that an input of the model chooses, as in a decoder with and without a cache in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from bitwright.graph.cloning import clone_model
from bitwright.graph.names import NameScope
from bitwright.graph.subgraphs import subgraphs_of, values_of
from bitwright.support.array_types import Array


def find_choices(model: ir.Model) -> dict[ir.Node, str]:
    """Return the Ifs of the main graph whose condition is an input of the model, with its name."""
    inputs = set(model.graph.inputs)
    return {
        node: node.inputs[0].name or ""
        for node in model.graph
        if node.op_type == "If" and not node.domain and node.inputs[0] in inputs
    }


def iter_chosen(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the graphs whose nodes `open_branches` can bring into the main graph, and that one."""
    yield model.graph
    for node in find_choices(model):
        yield from (body for _, body in subgraphs_of(node))


def open_branches(model: ir.Model, sample: Mapping[str, Array]) -> ir.Model:
    """Return a copy where the branches that a sample takes stand in the place of their Ifs.

    Nodes keep their names, and so do tensors unless one of the main graph has that name.
    """
    clone = clone_model(model)
    names = NameScope(clone)
    for node, condition in find_choices(clone).items():
        taken = "then_branch" if bool(sample[condition].item()) else "else_branch"
        _open(clone.graph, node, node.attributes[taken].as_graph(), names)
    return clone


def _open(graph: ir.Graph, node: ir.Node, body: ir.Graph, names: NameScope) -> None:
    taken = {value.name for value in values_of(graph)}
    for value in list(body.initializers.values()):
        del body.initializers[value.name or ""]
        _rename(value, taken, names)
        graph.register_initializer(value)
    results = list(body.outputs)
    body.outputs.clear()
    moved = list(body)
    body.remove(moved)
    for value in (output for each in moved for output in each.outputs):
        _rename(value, taken, names)
    graph.insert_before(node, moved)
    for old, new in zip(node.outputs, results, strict=True):
        label = old.name
        # A tensor may leave twice: each gets a copy.
        copy = ir.node("Identity", [new], name=names.fresh(f"{label}_taken"))
        copied = copy.outputs[0]
        copied.type, copied.shape = old.type, old.shape
        graph.insert_before(node, copy)
        old.replace_all_uses_with(copied, replace_graph_outputs=True)
        old.name, copied.name = None, label
    graph.remove(node)


def _rename(value: ir.Value, taken: set[str | None], names: NameScope) -> None:
    if value.name in taken:
        value.name = names.fresh(value.name or "")
