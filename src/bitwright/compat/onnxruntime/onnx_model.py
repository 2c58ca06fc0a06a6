"""`ONNXModel` of ONNX Runtime's tool: a model proto that is read and changed in place."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from bitwright import graph
from bitwright.compat.model_wrapper import ModelViews
from bitwright.compat.onnxruntime.gemm_to_matmul import read_names, split_gemms
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
        """Return the readers of each tensor; one that reads it twice stands there twice."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes():
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return the node that makes each tensor."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self,
        node: NodeProto,
        input_name_to_nodes: Mapping[str, Sequence[NodeProto]] | None = None,
    ) -> list[NodeProto]:
        """Return the nodes that read what this one makes."""
        readers = input_name_to_nodes or self.input_name_to_nodes()
        return [reader for name in node.output for reader in readers.get(name, [])]

    def get_parents(
        self, node: NodeProto, output_name_to_node: Mapping[str, NodeProto] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make what this one reads."""
        makers = output_name_to_node or self.output_name_to_node()
        return [makers[name] for name in node.input if name in makers]

    def get_parent(
        self,
        node: NodeProto,
        idx: int,
        output_name_to_node: Mapping[str, NodeProto] | None = None,
    ) -> NodeProto | None:
        """Return the node that makes one input of a node, or None."""
        makers = output_name_to_node or self.output_name_to_node()
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """Return the input of this name, or None."""
        found: ValueInfoProto | None = find_by_name(input_name, self.graph().input)
        return found

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """Return the output of this name, or None."""
        found: ValueInfoProto | None = find_by_name(output_name, self.graph().output)
        return found

    def get_tensor_type(self, tensor_name: str) -> TypeProto.Tensor | None:
        """Return the element type and shape that the model states for a tensor, or None."""
        main = self.graph()
        found = find_by_name(tensor_name, [*main.value_info, *main.input, *main.output])
        return None if found is None else found.type.tensor_type

    def get_constant_value(self, output_name: str) -> npt.NDArray[Any] | None:
        """Return the value of an initializer or of a Constant node, or None."""
        for node in self.nodes():
            if node.op_type == "Constant" and node.output[0] == output_name:
                for attribute in node.attribute:
                    if attribute.name == "value":
                        return onnx.numpy_helper.to_array(attribute.t)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else onnx.numpy_helper.to_array(tensor)

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[NodeProto], graph: GraphProto
    ) -> NodeProto | None:
        """Return the node of this name, from a graph or from nodes yet to be added, or None."""
        found: NodeProto | None = find_by_name(node_name, [*graph.node, *new_nodes_list])
        return found

    def find_nodes_by_initializer(
        self, graph: GraphProto, initializer: TensorProto
    ) -> list[NodeProto]:
        """Return the nodes of a graph that read an initializer."""
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in a node's name, or -1."""
        return _largest_suffix(node_name_prefix, self.nodes())

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in an initializer's name, or -1."""
        return _largest_suffix(initializer_name_prefix, self.initializer())

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
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Let what makes one tensor make another."""
        for node in self.nodes():
            self.replace_node_output(node, old_output_name, new_output_name)

    def replace_input_of_nodes(
        self, old_input_name: str, new_input_name: str, node_names_set: Container[str]
    ) -> None:
        """Let the named nodes read one tensor in place of another."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Container[str]
    ) -> None:
        """Let the named nodes make one tensor in place of another."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_output(node, old_output_name, new_output_name)

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read one tensor in place of another."""
        _rename(node.input, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Let a node make one tensor in place of another."""
        _rename(node.output, old_output_name, new_output_name)

    def remove_unused_constant(self) -> None:
        """Drop the Constant nodes and the initializers that nothing reads."""
        used = self._used_names()
        idle = [node for node in self.nodes() if node.op_type == "Constant"]
        self.remove_nodes(node for node in idle if node.output[0] not in used)
        self.clean_initializers()

    def replace_gemm_with_matmul(self) -> None:
        """Split each Gemm that only multiplies and adds into MatMul and Add, in bodies too."""
        split_gemms(self.graph())

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
        used = self._used_names()
        self.remove_initializers(t for t in list(self.initializer()) if t.name not in used)

    def _used_names(self) -> set[str]:
        """Return what nodes read, those of bodies too, and what the model gives."""
        return {*read_names(self.graph()), *(value.name for value in self.graph().output)}

    def save_model_to_file(
        self, output_path: str | Path, use_external_data_format: bool = False
    ) -> None:
        """Write the model: all of it, or nothing."""
        external = True if use_external_data_format else None
        graph.save_model(graph.load_model(self.model), output_path, external_data=external)


def _largest_suffix(prefix: str, items: Iterable[Any]) -> int:
    rests = (item.name.removeprefix(prefix) for item in items if item.name.startswith(prefix))
    return max((int(rest) for rest in rests if rest.isdigit()), default=-1)


def _rename(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new
