"""`ONNXModel`: wraps a model for callers that read it as a message and save it at any size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bitwright import graph
from bitwright.errors import ModelError
from bitwright.graph.tensors import inline_copy

if TYPE_CHECKING:
    import onnx

    from bitwright.plan import QuantPlan

__all__ = ["ModelViews", "ONNXModel"]


class ModelViews:
    """What both kinds of `ONNXModel` show of their message."""

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

    def get_initializer(self, name: str) -> onnx.TensorProto | None:
        """Return the constant of this name, or None."""
        return next((tensor for tensor in self.initializer() if tensor.name == name), None)


class ONNXModel(ModelViews):
    """A model with what callers of such quantizers do with theirs: look, and save.

    It becomes a message when one is asked for; saved without that, it may have any size.

    >>> import bitwright
    >>> model = ONNXModel(bitwright.load_demo().model_path)
    >>> model.nodes()[0].op_type
    'Conv'
    """

    def __init__(
        self,
        model: str | Path | onnx.ModelProto | ir.Model | ONNXModel,
        plan: QuantPlan | None = None,
    ) -> None:
        if isinstance(model, ONNXModel):
            model = model.wrapped
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

    @property
    def ir_version(self) -> int:
        """The version of the file format."""
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
