"""Looking at a model message and changing it in place, as the `ONNXModel` classes of tools do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto

from bitwright import graph
from bitwright.errors import ModelError, did_you_mean

__all__ = ["ModelEditing", "iter_graphs", "read_names"]


class ModelEditing:
    """What both kinds of `ONNXModel` show of their message, and how they change it in place."""

    model: Any

    def graph(self) -> Any:
        """Return the main graph."""
        return self.model.graph

    def nodes(self) -> Any:
        """Return the nodes of the main graph."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the constants of the main graph."""
        return self.model.graph.initializer

    def opset_import(self) -> Any:
        """Return the operator sets that the model uses."""
        return self.model.opset_import

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return the constant of this name, or None."""
        return next((tensor for tensor in self.initializer() if tensor.name == name), None)

    def readers(self) -> dict[str, list[NodeProto]]:
        """Return the readers of each tensor; one that reads it twice stands there twice."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes():
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def makers(self) -> dict[str, NodeProto]:
        """Return the node that makes each tensor."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self,
        node: NodeProto,
        input_name_to_nodes: Mapping[str, Sequence[NodeProto]] | None = None,
    ) -> list[NodeProto]:
        """Return the nodes that read what this one makes."""
        readers = input_name_to_nodes or self.readers()
        return [reader for name in node.output for reader in readers.get(name, [])]

    def get_parents(
        self, node: NodeProto, output_name_to_node: Mapping[str, NodeProto] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make what this one reads."""
        makers = output_name_to_node or self.makers()
        return [makers[name] for name in node.input if name in makers]

    def get_parent(
        self,
        node: NodeProto,
        idx: int,
        output_name_to_node: Mapping[str, NodeProto] | None = None,
    ) -> NodeProto | None:
        """Return the node that makes one input of a node, or None."""
        makers = output_name_to_node or self.makers()
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[NodeProto], graph: GraphProto
    ) -> NodeProto | None:
        """Return the node of this name, from a graph or from nodes yet to be added, or None."""
        nodes = (*graph.node, *new_nodes_list)
        return next((node for node in nodes if node.name == node_name), None)

    def find_nodes_by_initializer(
        self, graph: GraphProto, initializer: TensorProto
    ) -> list[NodeProto]:
        """Return the nodes of a graph that read an initializer."""
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def add_node(self, node: NodeProto) -> None:
        """Add a node at the end; `topological_sort` puts it in its place."""
        self.nodes().append(node)

    def add_nodes(self, nodes_to_add: Iterable[NodeProto]) -> None:
        """Add nodes at the end."""
        self.nodes().extend(nodes_to_add)

    def remove_node(self, node: NodeProto) -> None:
        """Take a node out."""
        if node not in self.nodes():
            names = [known.name for known in self.nodes()]
            raise ModelError(f"there is no node {node.name!r}.{did_you_mean(node.name, names)}")
        self.nodes().remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        """Take nodes out."""
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def add_initializer(self, tensor: TensorProto) -> None:
        """Add an initializer, unless there is one of its name."""
        if self.get_initializer(tensor.name) is None:
            self.initializer().append(tensor)

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Take an initializer out, and the graph input of its name."""
        known = self.get_initializer(tensor.name)
        if known is not None:
            self.initializer().remove(known)
        for declared in [value for value in self.graph().input if value.name == tensor.name]:
            self.graph().input.remove(declared)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        """Take initializers out."""
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read one tensor in place of another."""
        _rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Let a node make one tensor in place of another."""
        _rename(node.output, old_output_name, new_output_name)

    def topological_sort(self) -> None:
        """Put every node behind those that make what it reads."""
        loaded = graph.load_model(self.model)
        loaded.graph.sort()
        by_outputs = {tuple(node.output): node for node in self.nodes()}
        made = [tuple(value.name or "" for value in node.outputs) for node in loaded.graph]
        nodes = [NodeProto.FromString(by_outputs[key].SerializeToString()) for key in made]
        del self.nodes()[:]
        self.nodes().extend(nodes)

    def clean_initializers(self) -> None:
        """Drop what nothing reads."""
        used = self.used_names()
        self.remove_initializers(t for t in list(self.initializer()) if t.name not in used)

    def used_names(self) -> set[str]:
        """Return what nodes read, those of bodies too, and what the model gives."""
        return {*read_names(self.graph()), *(value.name for value in self.graph().output)}


def iter_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and the bodies of its nodes, and of the nodes in these."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from iter_graphs(body)


def read_names(graph: GraphProto) -> Iterator[str]:
    """Yield the name of each input of each node, and of each output of a body."""
    for inner in iter_graphs(graph):
        yield from (name for node in inner.node for name in node.input if name)
        yield from (value.name for value in inner.output if inner is not graph)


def _rename(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new
