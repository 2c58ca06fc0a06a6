"""Branches that an input of the model chooses, as in a decoder with and without a cache in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from bitwright.graph.cloning import clone_model
from bitwright.graph.editing import like
from bitwright.graph.names import NameScope
from bitwright.graph.subgraphs import iter_graphs, subgraphs_of, values_of
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
        leaving = ir.node("Identity", [new], name=names.fresh(f"{label}_taken"))
        copied = leaving.outputs[0]
        copied.type, copied.shape = old.type, old.shape
        graph.insert_before(node, leaving)
        old.replace_all_uses_with(copied, replace_graph_outputs=True)
        old.name, copied.name = None, label
    graph.remove(node)


def _rename(value: ir.Value, taken: set[str | None], names: NameScope) -> None:
    if value.name in taken:
        value.name = names.fresh(value.name or "")


def choose_by_size(few: ir.Model, many: ir.Model, tensor: str, size: int) -> ir.Model:
    """Return a model that computes as `few` where an input has fewer elements, else as `many`.

    Both, which have the same inputs and outputs, are used up. Constants go to the main graph: in a
    body the runtime would keep them beside what it packs of them. Those that both have are shared.
    """
    inputs = {value.name: value for value in few.graph.inputs}
    for value in many.graph.inputs:
        value.replace_all_uses_with(inputs[value.name])
    outputs = [like(value, value.name) for value in few.graph.outputs]
    limit = ir.val(f"few/{tensor}", const_value=ir.tensor(np.array(size, np.int64)))
    kept = {limit.name or "": limit}
    bodies = [_as_body(model, prefix, kept) for model, prefix in ((few, ""), (many, "many/"))]
    few.graph.inputs.clear()
    count = ir.node("Size", [inputs[tensor]], name="count", outputs=[ir.val("few/count")])
    below = ir.node("Less", [*count.outputs, limit], name="below", outputs=[ir.val("few/below")])
    chosen = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
    either = ir.node("If", below.outputs, chosen, outputs=outputs, name="few_or_many")
    graph = ir.Graph(
        list(inputs.values()),
        outputs,
        nodes=[count, below, either],
        initializers=list(kept.values()),
        opset_imports={**many.graph.opset_imports, **few.graph.opset_imports},
        name=few.graph.name,
    )
    version, facts = max(few.ir_version, many.ir_version), few.metadata_props
    functions = [*{**many.functions, **few.functions}.values()]
    return ir.Model(graph, ir_version=version, functions=functions, metadata_props=facts)


def _as_body(model: ir.Model, prefix: str, kept: dict[str, ir.Value]) -> ir.Graph:
    """Return the main graph of a model as a body, whose constants are added to those to keep."""
    for graph in [graph for _, graph in iter_graphs(model)]:
        for value in list(graph.initializers.values()):
            name = value.name or ""
            del graph.initializers[name]
            if name in kept and kept[name].const_value is value.const_value:
                value.replace_all_uses_with(kept[name])
                continue
            value.name = prefix + name
            if graph is model.graph:
                kept[value.name] = value
            else:
                graph.register_initializer(value)
        for node in graph:
            node.name = prefix + (node.name or "")
            for value in node.outputs:
                value.name = value.name and prefix + value.name
    nodes, results = list(model.graph), list(model.graph.outputs)
    model.graph.outputs.clear()
    model.graph.remove(nodes)
    for place, value in enumerate(results):
        value.name = f"{prefix or 'few/'}result_{place}"
    return ir.Graph([], results, nodes=nodes, name=f"{prefix or 'few/'}body")
