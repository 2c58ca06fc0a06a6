"""`ONNXModel` of ONNX Runtime's tool: a model proto that is read and changed in place."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from bitwright import graph
from bitwright.compat.model_wrapper import ModelViews
from bitwright.compat.onnxruntime.quant_utils import attribute_to_kwarg, find_by_name
from bitwright.errors import ModelError, did_you_mean

__all__ = ["ONNXModel", "attribute_to_kwarg", "find_by_name"]


class ONNXModel(ModelViews):
    """A model proto, looked at and changed in place.

    >>> import bitwright
    >>> model = ONNXModel(onnx.load(bitwright.load_demo().model_path))
    >>> model.is_graph_input("image"), len(model.get_parents(model.nodes()[0]))
    (True, 0)
    """

    model: ModelProto

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def ir_version(self) -> int:
        """Return the version of the file format."""
        return int(self.model.ir_version)

    def set_opset_import(self, domain: str, version: int) -> None:
        """Note that the model uses an opset; its nodes stay as they are."""
        for opset in self.model.opset_import:
            if opset.domain == domain:
                opset.version = version
                return
        self.model.opset_import.append(onnx.helper.make_opsetid(domain, version))

    # Looking ------------------------------------------------------------------------------

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of all initializers."""
        return {tensor.name for tensor in self.initializer()}

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of the inputs that have to be fed."""
        return {value.name for value in self.graph().input} - self.get_initializer_name_set()

    def is_graph_input(self, tensor_name: str) -> bool:
        """Whether this is an input of the model."""
        return any(value.name == tensor_name for value in self.graph().input)

    def is_graph_output(self, output_name: str) -> bool:
        """Whether this is an output of the model."""
        return any(value.name == output_name for value in self.graph().output)

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """Return the readers of each tensor."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes():
            for name in dict.fromkeys(node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return the node that makes each tensor."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self, node: NodeProto, input_name_to_nodes: dict[str, list[NodeProto]] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that read what this one makes."""
        readers = input_name_to_nodes or self.input_name_to_nodes()
        return [reader for name in node.output for reader in readers.get(name, [])]

    def get_parents(
        self, node: NodeProto, output_name_to_node: dict[str, NodeProto] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make what this one reads."""
        makers = output_name_to_node or self.output_name_to_node()
        return [makers[name] for name in node.input if name in makers]

    # Changing -----------------------------------------------------------------------------

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

    def initializer_extend(self, inits: Iterable[TensorProto]) -> None:
        """Add initializers whose names are new."""
        for tensor in inits:
            self.add_initializer(tensor)

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Take an initializer out, and the graph input of its name."""
        known = self.get_initializer(tensor.name)
        if known is not None:
            self.initializer().remove(known)
        declared = find_by_name(tensor.name, self.graph().input)
        if declared is not None:
            self.graph().input.remove(declared)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        """Take initializers out."""
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let every reader of one tensor read another."""
        for node in self.nodes():
            _rename(node.input, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Let what makes one tensor make another."""
        for node in self.nodes():
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
        used = {name for node in self.nodes() for name in node.input}
        used |= {value.name for value in self.graph().output}
        self.remove_initializers(t for t in list(self.initializer()) if t.name not in used)

    def save_model_to_file(
        self, output_path: str | Path, use_external_data_format: bool = False
    ) -> None:
        """Write the model: all of it, or nothing."""
        external = True if use_external_data_format else None
        graph.save_model(graph.load_model(self.model), output_path, external_data=external)


def _rename(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new
