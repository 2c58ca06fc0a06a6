"""`ONNXModel` of ONNX Runtime's tool: a model proto that is read and changed in place."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from bitwright import graph
from bitwright.compat.model_editing import ModelEditing
from bitwright.compat.onnxruntime.gemm_to_matmul import split_gemms
from bitwright.compat.onnxruntime.quant_utils import attribute_to_kwarg, find_by_name

__all__ = ["ONNXModel", "attribute_to_kwarg", "find_by_name"]


class ONNXModel(ModelEditing):
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
        return self.readers()

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return the node that makes each tensor."""
        return self.makers()

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

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in a node's name, or -1."""
        return _largest_suffix(node_name_prefix, self.nodes())

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the largest number that follows a prefix in an initializer's name, or -1."""
        return _largest_suffix(initializer_name_prefix, self.initializer())

    # Changing -----------------------------------------------------------------------------

    def initializer_extend(self, inits: Iterable[TensorProto]) -> None:
        """Add initializers whose names are new."""
        for tensor in inits:
            self.add_initializer(tensor)

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

    def remove_unused_constant(self) -> None:
        """Drop the Constant nodes and the initializers that nothing reads."""
        used = self.used_names()
        idle = [node for node in self.nodes() if node.op_type == "Constant"]
        self.remove_nodes(node for node in idle if node.output[0] not in used)
        self.clean_initializers()

    def replace_gemm_with_matmul(self) -> None:
        """Split each Gemm that only multiplies and adds into MatMul and Add, in bodies too."""
        split_gemms(self.graph())

    def save_model_to_file(
        self, output_path: str | Path, use_external_data_format: bool = False
    ) -> None:
        """Write the model: all of it, or nothing."""
        external = True if use_external_data_format else None
        graph.save_model(graph.load_model(self.model), output_path, external_data=external)


def _largest_suffix(prefix: str, items: Iterable[Any]) -> int:
    rests = (item.name.removeprefix(prefix) for item in items if item.name.startswith(prefix))
    return max((int(rest) for rest in rests if rest.isdigit()), default=-1)
