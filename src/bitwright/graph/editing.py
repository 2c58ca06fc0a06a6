"""Edit a graph: add constants and nodes, replace what is read and written, remove the unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bitwright.errors import ModelError
from bitwright.graph.constants import is_private
from bitwright.graph.names import NameScope
from bitwright.graph.subgraphs import values_of
from bitwright.graph.tensors import shape_of
from bitwright.support.array_types import Array

Attributes = Mapping[str, Any] | None
Content = Array | np.generic | ir.TensorProtocol


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph that a value is made in."""
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise ModelError(f"tensor {value.name!r} belongs to no graph of the model.")
    return graph


def like(value: ir.Value, name: str | None = None) -> ir.Value:
    """Return a new value of the same type and shape."""
    # A copy: setting `dtype` of a value writes into its type.
    return ir.Value(name=name, type=copy(value.type), shape=value.shape)


# Adding ---------------------------------------------------------------------------------------


def add_initializer(
    graph: ir.Graph, names: NameScope | None, name: str, content: Content
) -> ir.Value:
    """Add a constant to a graph, under this name or a free one like it.

    With names=None the caller knows that the name is free.
    """
    fresh = name if names is None else names.fresh(name)
    tensor = _tensor_of(content)
    tensor.name = fresh
    value = ir.Value(
        name=fresh, type=ir.TensorType(tensor.dtype), shape=shape_of(tensor), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _tensor_of(content: Content) -> ir.TensorProtocol:
    # Arithmetic with arrays of no axis gives numpy's scalars. `ir.tensor` would first ask whether
    # it is a tensor of any other kind, which takes longer than all else here.
    if isinstance(content, np.ndarray | np.generic):
        return ir.Tensor(np.asarray(content, order="C"))
    return content


def insert_before(
    place: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    output: ir.Value,
    name: str,
    attributes: Attributes = None,
    *,
    domain: str = "",
) -> ir.Value:
    """Add a node right before another one, and return its output."""
    assert place.graph is not None
    node = ir.node(op_type, inputs, attributes, domain=domain, outputs=[output], name=name)
    place.graph.insert_before(place, node)
    return output


def append_node(
    graph: ir.Graph,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    output: ir.Value,
    name: str | None,
    attributes: Attributes = None,
) -> ir.Value:
    """Add a node behind all others, and return its output."""
    graph.append(ir.node(op_type, inputs, attributes, outputs=[output], name=name))
    return output


def copy_node(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    name: str | None,
    attributes: Iterable[ir.Attr] | None = None,
) -> ir.Node:
    """Return a node like another one, of no graph yet, that reads and writes other values."""
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values() if attributes is None else attributes),
        overload=node.overload,
        outputs=outputs,
        name=name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )


def insert_after(graph: ir.Graph, node: ir.Node, place: ir.Node | None) -> None:
    """Add a node right behind another one, or first of all."""
    if place is not None:
        graph.insert_after(place, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def insert_behind_value(
    value: ir.Value,
    op_type: str,
    others: Sequence[ir.Value],
    *,
    renamed: str,
    name: str,
    attributes: Attributes = None,
) -> ir.Node:
    """Add a node that reads a node's output, and writes it anew for all who read it before.

    The result takes over the name; `renamed` is what the output before it is called from then on.
    """
    producer = value.producer()
    assert producer is not None and producer.graph is not None
    result = like(value)
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    label, value.name = value.name, renamed
    result.name = label
    node = ir.node(op_type, [value, *others], attributes, outputs=[result], name=name)
    producer.graph.insert_after(producer, node)
    return node


# Replacing ------------------------------------------------------------------------------------


def replace_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Let a node read exactly these."""
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let a value take another one's place: its readers, its name, and what is known about it."""
    new.shape = old.shape if old.shape is not None else new.shape
    new.type = old.type if old.type is not None else new.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    label, old.name = old.name, None
    new.name = label


def replace_constant(
    node: ir.Node, index: int, content: Content, name: str, names: NameScope
) -> None:
    """Give a node input a new constant: in place where it is the only user, else as a copy.

    `name` is what a new initializer is called if the input has none to copy the name from.
    """
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    if old is not None and old.name and old.is_initializer() and is_private(old):
        tensor = _tensor_of(content)
        tensor.name = old.name
        old.const_value, old.shape = tensor, shape_of(tensor)
        return
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError("functions have no initializers; inline them first")
    label = old.name if old is not None and old.name else name
    node.replace_input_with(index, add_initializer(graph, names, label, content))
    drop_if_unused(old)


# Removing -------------------------------------------------------------------------------------


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes that nothing reads, readers before producers, and constants only they read."""
    for node in nodes:
        inputs = list(node.inputs)
        if node.graph is not None:
            node.graph.remove(node, safe=True)
        for value in inputs:
            drop_if_unused(value)


def drop_if_unused(value: ir.Value | None) -> bool:
    """Remove an initializer that nothing reads any more; return whether it is gone."""
    if value is None or not value.is_initializer() or value.uses():
        return False
    if value.is_graph_output() or value.is_graph_input() or value.graph is None or not value.name:
        return False
    value.graph.initializers.pop(value.name)
    return True


def remove_unused_initializers(model: ir.Model) -> list[str]:
    """Remove the constants that nothing reads, in every graph; return their names."""
    return [
        name
        for graph in model.graphs()
        for name, value in list(graph.initializers.items())
        if drop_if_unused(value)
    ]


def remove_unused_nodes(model: ir.Model) -> None:
    """Remove the nodes whose outputs nothing reads, and the constants that only they read."""
    with _training_norms_kept(model):
        RemoveUnusedNodesPass()(model)
        while _release_dead_readers(model):
            RemoveUnusedNodesPass()(model)


def is_training_norm(node: ir.Node, opset: int) -> bool:
    """Return whether a batch norm computes its statistics of the batch instead of reading them.

    Below opset 14 the number of outputs says so: whether anybody reads them does not matter.
    """
    if node.op_type != "BatchNormalization" or node.domain:
        return False
    if opset >= 14:
        return bool(node.attributes.get_int("training_mode", 0))
    return any(value.name for value in node.outputs[1:])


@contextmanager
def _training_norms_kept(model: ir.Model) -> Iterator[None]:
    """Give the batch norms in training mode back what onnx-ir takes from them.

    It drops statistics that nobody reads, and the mode with them, which changes what the norm
    computes; below opset 14 it leaves half of the names, and ONNX Runtime crashes on those.
    """
    opset = model.opset_imports.get("", 0)
    norms = [node for node in model.graph.all_nodes() if is_training_norm(node, opset)]
    names = [[value.name for value in norm.outputs] for norm in norms]
    modes = [norm.attributes.get("training_mode") for norm in norms]
    yield
    for norm, old_names, mode in zip(norms, names, modes, strict=True):
        for value, name in zip(norm.outputs, old_names, strict=True):
            value.name = name
        if mode is not None:
            norm.attributes.add(mode)


def _release_dead_readers(model: ir.Model) -> bool:
    """Let go what the bodies of removed nodes read; return whether there was any.

    onnx-ir takes such a node out of its graph and leaves its bodies as they are, so that what they
    read of the graph around them still counts as read.
    """
    live = set(model.graph.all_nodes())
    dead = [
        use
        for graph in model.graphs()
        for value in values_of(graph)
        for use in value.uses()
        if use.node not in live
    ]
    for node, index in dead:
        node.replace_input_with(index, None)
    return bool(dead)
