"""`ONNXModel`: wraps a model for callers that read and change its message, and save any size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.compat.model_editing import ModelEditing
from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.tensors import inline_copy

if TYPE_CHECKING:
    from bitwright.plan import QuantPlan

__all__ = ["ONNXModel"]


class ONNXModel(ModelEditing):
    """A model with what callers of such quantizers do with theirs: look, change, and save.

    It becomes a message when one is asked for; saved without that, it may have any size.
    What it shows is read from the message each time, so changes count at once.

    >>> import bitwright
    >>> model = ONNXModel(bitwright.load_demo().model_path)
    >>> model.nodes()[0].op_type
    'Conv'
    """

    def __init__(
        self,
        model: Any,
        plan: QuantPlan | None = None,
    ) -> None:
        if isinstance(model, ONNXModel):
            model = model.wrapped
        elif isinstance(getattr(model, "model", None), onnx.ModelProto):
            model = model.model  # of another tool's wrapper
        if isinstance(model, (str, Path)):
            model = graph.load_model(model)
        self.wrapped: ir.Model | onnx.ModelProto = model
        self.plan = plan
        """What was decided about each node and weight, where the model was quantized here."""

    @property
    def model(self) -> onnx.ModelProto:
        """The model as a protobuf message; what is changed in it is saved."""
        if isinstance(self.wrapped, ir.Model):
            size = graph.serialized_size(self.wrapped)
            if size > graph.EXTERNAL_DATA_THRESHOLD:
                raise ModelError(
                    f"the model has {size / 1e9:.1f} GB, and a protobuf message ends at 2 GB; save "
                    "it to a file."
                )
            for slot in graph.tensor_slots(self.wrapped):
                slot.put(inline_copy(slot.tensor))
            self.wrapped = ir.to_proto(self.wrapped)
        return self.wrapped

    def ir_version(self) -> int:
        """Return the version of the file format."""
        return int(self.wrapped.ir_version or 0)

    def input(self) -> list[str]:
        """Return the names of the inputs."""
        return [value.name for value in self.model.graph.input]

    def output(self) -> list[str]:
        """Return the names of the outputs."""
        return [value.name for value in self.model.graph.output]

    def get_node(self, name: str) -> onnx.NodeProto | None:
        """Return the node of this name, or None."""
        return next((node for node in self.nodes() if node.name == name), None)

    # Looking ------------------------------------------------------------------------------

    @property
    def input_name_to_nodes(self) -> dict[str, list[onnx.NodeProto]]:
        """The readers of each tensor."""
        return self.readers()

    @property
    def output_name_to_node(self) -> dict[str, onnx.NodeProto]:
        """The node that makes each tensor."""
        return self.makers()

    @property
    def graph_info(self) -> dict[str, str]:
        """The op type of each node, by the node's name."""
        return {node.name: node.op_type for node in self.nodes()}

    def update(self) -> None:
        """Read the message again; here it is read whenever something is asked, so this is free."""

    def get_siblings(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the other nodes that read what the makers of a node's inputs make."""
        parents = self.get_parents(node)
        return [
            child
            for parent in parents
            for child in self.get_children(parent)
            if child.name != node.name
        ]

    def get_initializer_share_num(self, name: str) -> int:
        """Return how many nodes read a constant; 0 of what is none."""
        if self.get_initializer(name) is None:
            return 0
        return sum(name in node.input for node in self.nodes())

    def get_nodes_chain(
        self,
        start: Iterable[str | onnx.NodeProto],
        stop: Iterable[str | onnx.NodeProto],
        result_chain: list[str] | None = None,
    ) -> list[str]:
        """Return the names of the nodes upstream of some, those included, up to others."""
        ends = {_name(node) for node in stop}
        chain = [] if result_chain is None else result_chain
        by_name = {node.name: node for node in self.nodes()}
        makers = self.makers()
        queue = deque(map(_name, start))
        while queue:
            name = queue.popleft()
            if name in ends or name in chain:
                continue
            if name not in by_name:
                raise ModelError(f"there is no node {name!r}.{did_you_mean(name, by_name)}")
            chain.append(name)
            queue.extend(parent.name for parent in self.get_parents(by_name[name], makers))
        return chain

    def match_first_parent(
        self,
        node: onnx.NodeProto,
        parent_op_type: str,
        output_name_to_node: Mapping[str, onnx.NodeProto] | None = None,
        exclude: Sequence[onnx.NodeProto] | None = None,
    ) -> tuple[onnx.NodeProto, int] | tuple[None, None]:
        """Return the first maker of an input that has this op type, and the input's position."""
        makers = output_name_to_node or self.makers()
        for index, name in enumerate(node.input):
            parent = makers.get(name)
            if parent is None or parent in (exclude or ()):
                continue
            if parent.op_type == parent_op_type:
                return parent, index
        return None, None

    def match_parent(
        self,
        node: onnx.NodeProto,
        parent_op_type: str,
        input_index: int | None = None,
        output_name_to_node: Mapping[str, onnx.NodeProto] | None = None,
        exclude: Sequence[onnx.NodeProto] | None = None,
        return_indice: list[int | None] | None = None,
    ) -> onnx.NodeProto | None:
        """Return the maker of an input, or of any, if it has this op type; else None."""
        if input_index is None:
            parent, index = self.match_first_parent(
                node, parent_op_type, output_name_to_node, exclude
            )
            if return_indice is not None:
                return_indice.append(index)
            return parent
        parent = self.get_parent(node, input_index, output_name_to_node)
        if parent is None or parent.op_type != parent_op_type or parent in (exclude or ()):
            return None
        return parent

    def match_parent_path(
        self,
        node: onnx.NodeProto,
        parent_op_types: Sequence[str],
        parent_input_index: Sequence[int | None],
        output_name_to_node: Mapping[str, onnx.NodeProto] | None = None,
        return_indice: list[int | None] | None = None,
    ) -> list[onnx.NodeProto] | None:
        """Return the makers that a path of op types and input positions leads to, or None."""
        makers = output_name_to_node or self.makers()
        found: list[onnx.NodeProto] = []
        for op_type, index in zip(parent_op_types, parent_input_index, strict=True):
            parent = self.match_parent(node, op_type, index, makers, None, return_indice)
            if parent is None:
                return None
            found.append(parent)
            node = parent
        return found

    # Changing -----------------------------------------------------------------------------

    def add_initializers(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Add constants whose names are new."""
        for tensor in tensors:
            self.add_initializer(tensor)

    def set_initializer(self, tensor: str, array: npt.NDArray[Any], raw: bool = False) -> None:
        """Give a constant other values, in its type and shape; `raw` is about storage only."""
        known = self.get_initializer(tensor)
        if known is None:
            names = [each.name for each in self.initializer()]
            raise ModelError(f"there is no constant {tensor!r}.{did_you_mean(tensor, names)}")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(known.data_type)
        values = np.asarray(array).astype(dtype).reshape(tuple(known.dims))
        known.CopyFrom(onnx.numpy_helper.from_array(values, tensor))

    def replace_input_of_all_nodes(
        self,
        old_input_name: str,
        new_input_name: str,
        white_optype: Sequence[str] | None = None,
        black_optype: Sequence[str] | None = None,
    ) -> None:
        """Let readers of one tensor read another: all, those of some op types, or all others."""
        for node in self._filtered(white_optype, black_optype):
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(
        self,
        old_output_name: str,
        new_output_name: str,
        white_optype: Sequence[str] | None = None,
        black_optype: Sequence[str] | None = None,
    ) -> None:
        """Let what makes one tensor make another."""
        for node in self._filtered(white_optype, black_optype):
            self.replace_node_output(node, old_output_name, new_output_name)

    def _filtered(
        self, only: Sequence[str] | None, without: Sequence[str] | None
    ) -> list[onnx.NodeProto]:
        return [
            node
            for node in self.nodes()
            if (not only or node.op_type in only) and node.op_type not in (without or ())
        ]

    def topological_sort(self, enable_subgraph: bool = False) -> None:
        """Put every node behind those that make what it reads, or what its bodies read.

        `enable_subgraph` asks for the second, which is always done: else a model may not load.
        """
        super().topological_sort()

    def remove_unused_nodes(self) -> None:
        """Drop nodes whose results nothing reads, again and again, and unused constants."""
        while True:
            used = self.used_names()
            idle = [node for node in self.nodes() if used.isdisjoint(node.output)]
            if not idle:
                break
            self.remove_nodes(idle)
        self.clean_initializers()

    def add_tensors_to_outputs(self, tensor_names: Iterable[str]) -> None:
        """Make tensors outputs of the model."""
        for name in tensor_names:
            if name not in self.output():
                self.graph().output.append(onnx.ValueInfoProto(name=name))

    def remove_tensors_from_outputs(self, tensor_names: Iterable[str]) -> None:
        """Let tensors be outputs of the model no longer."""
        unwanted = set(tensor_names)
        for value in [value for value in self.graph().output if value.name in unwanted]:
            self.graph().output.remove(value)

    # Saving -------------------------------------------------------------------------------

    def save(self, root: str | Path) -> None:
        """Write the model, all of it or nothing; over 2 GB with a file of tensors beside it."""
        self.save_model_to_file(root)

    def save_model_to_file(
        self, output_path: str | Path, use_external_data_format: bool = False
    ) -> None:
        """Write the model, all of it or nothing; over 2 GB always with a file of tensors."""
        graph.check_destination(output_path, source=self.wrapped)
        external = True if use_external_data_format else None
        graph.save_model(self.copy(), output_path, external_data=external)

    def copy(self) -> ir.Model:
        """Return a copy to work on."""
        return graph.load_model(self.wrapped)


def _name(node: str | onnx.NodeProto) -> str:
    return node if isinstance(node, str) else str(node.name)
