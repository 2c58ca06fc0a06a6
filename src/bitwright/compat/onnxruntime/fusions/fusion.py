"""`Fusion`: the base of rewrites that put one node in the place of several."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TypeProto

from bitwright.compat.onnxruntime.onnx_model import ONNXModel

__all__ = ["Fusion", "ONNXModel"]

Readers = Mapping[str, Sequence[NodeProto]]
Makers = Mapping[str, NodeProto]


class Fusion:
    """Looks at each node of one type and lets `fuse` collect what goes and what comes instead.

    >>> import bitwright
    >>> class ReluToClip(Fusion):
    ...     def fuse(self, node, input_name_to_nodes, output_name_to_node):
    ...         self.nodes_to_remove.append(node)
    ...         self.nodes_to_add.append(onnx.helper.make_node(
    ...             "Clip", node.input, node.output, self.create_unique_node_name(), min=0.0))
    >>> model = ONNXModel(onnx.load(bitwright.load_demo().model_path))
    >>> ReluToClip(model, "Clip", "Relu").apply(), model.nodes()[-1].name
    (True, 'Clip_fused_Relu_6')
    """

    def __init__(self, model: ONNXModel, fused_op_type: str, search_op_type: str) -> None:
        self.model = model
        self.fused_op_type = fused_op_type
        self.search_op_type = search_op_type
        self.nodes_to_remove: list[NodeProto] = []
        self.nodes_to_add: list[NodeProto] = []
        self._next_number: int | None = None

    def fuse(
        self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> None:
        """Add to `nodes_to_remove` and `nodes_to_add`, if the pattern around a node is there."""
        raise NotImplementedError

    def apply(self) -> bool:
        """Rewrite the model in place and return whether anything changed."""
        readers, makers = self.model.input_name_to_nodes(), self.model.output_name_to_node()
        for node in self.model.nodes():
            if node.op_type == self.search_op_type:
                self.fuse(node, readers, makers)
        # Two patterns may share a node; an id tells nodes apart that are equal messages.
        self.model.remove_nodes({id(node): node for node in self.nodes_to_remove}.values())
        self.model.add_nodes(self.nodes_to_add)
        changed = bool(self.nodes_to_remove or self.nodes_to_add)
        if changed:
            self.model.remove_unused_constant()
        return changed

    def create_unique_node_name(self) -> str:
        """Return a name for a fused node that no other node has."""
        prefix = f"{self.fused_op_type}_fused_{self.search_op_type}_"
        if self._next_number is None:
            self._next_number = self.model.get_largest_node_name_suffix(prefix) + 1
        self._next_number += 1
        return f"{prefix}{self._next_number - 1}"

    def _replace(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[str],
        output: str,
        readers: Readers,
        makers: Makers,
        **attributes: Any,
    ) -> bool:
        """Plan to put the fused node in the place of nodes, if nothing else needs their results."""
        results = {name for node in nodes for name in node.output} - {output}
        if any(self.model.is_graph_output(name) for name in results):
            return False
        if not self.is_safe_to_fuse_nodes(nodes, [output], readers, makers):
            return False
        self.nodes_to_remove.extend(nodes)
        name = self.create_unique_node_name()
        self.nodes_to_add.append(
            onnx.helper.make_node(self.fused_op_type, inputs, [output], name, **attributes)
        )
        return True

    @staticmethod
    def is_safe_to_fuse_nodes(
        nodes_to_remove: Sequence[NodeProto],
        keep_outputs: Collection[str],
        input_name_to_nodes: Readers,
        output_name_to_node: Makers,
    ) -> bool:
        """Return whether no other node reads what these make, but for some outputs."""
        return all(
            reader in nodes_to_remove
            for node in nodes_to_remove
            for name in node.output
            if name not in keep_outputs
            for reader in input_name_to_nodes.get(name, ())
        )

    @staticmethod
    def get_node_attribute(node: NodeProto, attribute_name: str) -> Any:
        """Return the value of an attribute, or None."""
        for attribute in node.attribute:
            if attribute.name == attribute_name:
                return onnx.helper.get_attribute_value(attribute)
        return None

    @staticmethod
    def input_index(node_output: str, child_node: NodeProto) -> int:
        """Return which input of a node a tensor is first, or -1."""
        inputs = list(child_node.input)
        return inputs.index(node_output) if node_output in inputs else -1

    @staticmethod
    def tensor_shape_to_list(tensor_type: TypeProto.Tensor) -> list[int | str]:
        """Return a shape as numbers, names, and "?" where nothing is known."""
        fields = [(dim.WhichOneof("value"), dim) for dim in tensor_type.shape.dim]
        return [getattr(dim, field) if field else "?" for field, dim in fields]

    def _only_reader(self, node: NodeProto, op_type: str, readers: Readers) -> NodeProto | None:
        """Return what alone reads a node's result, if it is of this type."""
        found = readers.get(node.output[0], ())
        return found[0] if len(found) == 1 and found[0].op_type == op_type else None

    def get_constant_input(
        self, node: NodeProto
    ) -> tuple[int, npt.NDArray[Any]] | tuple[None, None]:
        """Return the number and value of a node's first constant input, or (None, None)."""
        for index, name in enumerate(node.input):
            value = self.model.get_constant_value(name)
            if value is not None:
                return index, value
        return None, None

    def find_constant_input(
        self, node: NodeProto, expected_value: float, delta: float = 0.000001
    ) -> int:
        """Return which input is the constant of about this value, or -1."""
        index, value = self.get_constant_input(node)
        if index is None or value is None or value.size != 1:
            return -1
        return index if np.abs(value - expected_value).item() < delta else -1

    def has_constant_input(
        self, node: NodeProto, expected_value: float, delta: float = 0.000001
    ) -> bool:
        """Return whether an input is a constant of about this value."""
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_rank(self, output_name: str, rank: int) -> bool:
        """Return whether a tensor is a constant with this many axes."""
        value = self.model.get_constant_value(output_name)
        return value is not None and value.ndim == rank

    def match_first_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        output_name_to_node: Makers | None = None,
        exclude: Collection[NodeProto] = (),
    ) -> tuple[NodeProto, int] | tuple[None, None]:
        """Return the first maker of an input that is of a type, and the number of the input."""
        makers = output_name_to_node or self.model.output_name_to_node()
        for index, name in enumerate(node.input):
            parent = makers.get(name)
            if parent is not None and parent.op_type == parent_op_type and parent not in exclude:
                return parent, index
        return None, None

    def match_parent(
        self,
        node: NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Makers | None = None,
        exclude: Collection[NodeProto] = (),
        return_indice: list[int | None] | None = None,
    ) -> NodeProto | None:
        """Return the maker of an input, or of the first that fits, if it is of a type.

        The number of an input that fits is added to `return_indice`.
        """
        makers = output_name_to_node or self.model.output_name_to_node()
        if input_index is None:
            parent, index = self.match_first_parent(node, parent_op_type, makers, exclude)
            if return_indice is not None:
                return_indice.append(index)
            return parent
        parent = makers.get(node.input[input_index]) if input_index < len(node.input) else None
        if parent is None or parent.op_type != parent_op_type or parent in exclude:
            return None
        return parent

    def match_parent_path(
        self,
        node: NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None] | None = None,
        output_name_to_node: Makers | None = None,
        return_indice: list[int | None] | None = None,
    ) -> list[NodeProto] | None:
        """Return the nodes on a way upward, by their types and by the inputs it takes, or None."""
        makers = output_name_to_node or self.model.output_name_to_node()
        indices = parent_input_index or [None] * len(parent_op_types)
        path: list[NodeProto] = []
        for op_type, index in zip(parent_op_types, indices, strict=True):
            parent = self.match_parent(
                path[-1] if path else node, op_type, index, makers, return_indice=return_indice
            )
            if parent is None:
                return None
            path.append(parent)
        return path

    def match_parent_paths(
        self,
        node: NodeProto,
        paths: Sequence[tuple[Sequence[str], Sequence[int | None]]],
        output_name_to_node: Makers,
    ) -> tuple[int, list[NodeProto] | None, list[int | None] | None]:
        """Return the number of the first way upward that is there, its nodes and free inputs."""
        for number, (op_types, indices) in enumerate(paths):
            free: list[int | None] = []
            found = self.match_parent_path(node, op_types, indices, output_name_to_node, free)
            if found:
                return number, found, free
        return -1, None, None

    def find_first_child_by_type(
        self,
        node: NodeProto,
        child_type: str,
        input_name_to_nodes: Readers | None = None,
        recursive: bool = True,
    ) -> NodeProto | None:
        """Return a node of a type that reads a node's result, or else one further down."""
        readers = input_name_to_nodes or self.model.input_name_to_nodes()
        waiting = deque(self.model.get_children(node, readers))
        while waiting:
            child = waiting.pop()
            if child.op_type == child_type:
                return child
            if recursive:
                waiting.extendleft(self.model.get_children(child, readers))
        return None
