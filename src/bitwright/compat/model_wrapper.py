"""`ONNXModel`: wraps a model for callers that read and change its message, and save any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import GraphProto, NodeProto, TensorProto

from bitwright import graph
from bitwright.compat.onnxruntime.peer import peer
from bitwright.errors import ModelError, did_you_mean
from bitwright.graph.subgraphs import iter_messages
from bitwright.graph.tensors import inline_copy
from bitwright.support.array_types import Array

if TYPE_CHECKING:
    from bitwright.plan import QuantPlan


class ONNXModel(peer("neural_compressor.onnx_model").ONNXModel):  # type: ignore[misc]
    """A model with what callers of such quantizers do with theirs: look, change, and save.

    It becomes a message when one is asked for; saved without that, it may have any size. What it
    shows is read from the message each time, so changes count at once, where the peer's class asks
    for `update`. Other than there, names that nothing has are errors, constants keep their place,
    sorting and removing look into bodies, and a file is written all of it or nothing.

    >>> import bitwright
    >>> model = ONNXModel(bitwright.load_demo().model_path)
    >>> model.nodes()[0].op_type
    'Conv'
    """

    def __init__(self, model: Any, plan: QuantPlan | None = None) -> None:
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

    # What the peer's methods read -----------------------------------------------------------

    @property
    def _model(self) -> onnx.ModelProto:
        return self.model

    @property
    def _graph_info(self) -> dict[str, str]:
        return {node.name: node.op_type for node in self.nodes()}

    @property
    def _input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes():
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    @property
    def _output_name_to_node(self) -> dict[str, NodeProto]:
        return {name: node for node in self.nodes() for name in node.output if name}

    def update(self) -> None:
        """Read the message again; here it is read whenever something is asked, so this is free."""

    # Changing -------------------------------------------------------------------------------

    def get_nodes_chain(
        self,
        start: Iterable[str | NodeProto],
        stop: Iterable[str | NodeProto],
        result_chain: list[str] | None = None,
    ) -> list[str]:
        """Return the names of the nodes upstream of some, those included, up to others."""
        names = [node if isinstance(node, str) else node.name for node in start]
        known = {node.name for node in self.nodes()}
        for name in names:
            if name not in known:
                raise self._unknown(name)
        chain: list[str] = super().get_nodes_chain(names, stop, result_chain)
        return chain

    def remove_node(self, node: NodeProto) -> None:
        """Take a node out."""
        if node not in self.nodes():
            raise self._unknown(node.name)
        self.nodes().remove(node)

    def _unknown(self, name: str) -> ModelError:
        hint = did_you_mean(name, [node.name for node in self.nodes()])
        return ModelError(f"there is no node {name!r}.{hint}")

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Take an initializer out, and the graph input of its name."""
        known = self.get_initializer(tensor.name)
        if known is not None:
            self.initializer().remove(known)
        for declared in [value for value in self.graph().input if value.name == tensor.name]:
            self.graph().input.remove(declared)

    def set_initializer(self, tensor: str, array: Array, raw: bool = False) -> None:
        """Give a constant other values, in its type and shape; `raw` is about storage only."""
        known = self.get_initializer(tensor)
        if known is None:
            names = [each.name for each in self.initializer()]
            raise ModelError(f"there is no constant {tensor!r}.{did_you_mean(tensor, names)}")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(known.data_type)
        values = np.asarray(array).astype(dtype).reshape(tuple(known.dims))
        known.CopyFrom(onnx.numpy_helper.from_array(values, tensor))

    def topological_sort(self, enable_subgraph: bool = False) -> None:
        """Put every node behind those that make what it reads, or what its bodies read.

        `enable_subgraph` asks for the second, which is always done: else a model may not load.
        """
        loaded = graph.load_model(self.model)
        loaded.graph.sort()
        by_outputs = {tuple(node.output): node for node in self.nodes()}
        made = [tuple(value.name or "" for value in node.outputs) for node in loaded.graph]
        nodes = [NodeProto.FromString(by_outputs[key].SerializeToString()) for key in made]
        del self.nodes()[:]
        self.nodes().extend(nodes)

    def remove_unused_nodes(self) -> None:
        """Drop nodes whose results nothing reads, again and again, and unused constants."""
        while True:
            used = self._used_names()
            idle = [node for node in self.nodes() if used.isdisjoint(node.output)]
            if not idle:
                break
            self.remove_nodes(idle)
        self.clean_initializers()

    def clean_initializers(self) -> None:
        """Drop what nothing reads."""
        used = self._used_names()
        self.remove_initializers([t for t in self.initializer() if t.name not in used])

    def _used_names(self) -> set[str]:
        return {*read_names(self.graph()), *self.output()}

    # Saving ---------------------------------------------------------------------------------

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


Model = ONNXModel
"""Its name where the framework is not known."""


def read_names(graph: GraphProto) -> Iterator[str]:
    """Yield the name of each input of each node, and of each output of a body."""
    for _, inner in iter_messages("", graph):
        yield from (name for node in inner.node for name in node.input if name)
        yield from (value.name for value in inner.output if inner is not graph)
