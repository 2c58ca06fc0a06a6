"""A model without its weight data, for ONNX's C++ functions.

Those take and return whole protobuf messages, which cannot pass 2 GB. In a skeleton every big
tensor, at any level, is an input of the main graph with the same type and shape; small tensors
stay, because shape inference and the version converter read their values.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from bitwright.graph.cloning import clone_model
from bitwright.graph.messages import holding, to_message
from bitwright.graph.names import NameScope
from bitwright.graph.subgraphs import iter_graphs
from bitwright.graph.tensors import inline_copy

__all__ = ["Skeleton", "make_skeleton"]

BIG_TENSOR_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The message, and the initializer that each placeholder input stands for."""

    proto: onnx.ModelProto
    placeholders: dict[str, ir.Value]
    input_count: int
    """How many of the main graph's inputs are the model's own; placeholders follow them."""


def make_skeleton(model: ir.Model) -> Skeleton:
    """Return a light message of the model; the model itself is not touched."""
    light, lifted = _lift_from_bodies(model)
    inputs = list(light.graph.inputs)
    own = {value: position for position, value in enumerate(inputs)}
    initializers: list[ir.Value] = []
    placeholders: dict[str, ir.Value] = {}
    for name, value in light.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and _is_big(tensor):
            stand_in = holding(value, None)
            if value in own:
                inputs[own[value]] = stand_in
            else:
                inputs.append(stand_in)
            placeholders[name] = model.graph.initializers[name]
        elif isinstance(tensor, ir.ExternalTensor):
            initializers.append(holding(value, inline_copy(tensor)))
        else:
            initializers.append(value)
    for stand_in, original in lifted:
        inputs.append(stand_in)
        placeholders[stand_in.name or ""] = original
    proto = to_message(light, inputs=inputs, initializers=initializers)
    # Below IR 4 each initializer must be an input, and we may just have taken that away.
    proto.ir_version = max(4, proto.ir_version)
    return Skeleton(proto, placeholders, len(own))


def _is_big(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes > BIG_TENSOR_BYTES and tensor.dtype != ir.DataType.STRING


def _lift_from_bodies(model: ir.Model) -> tuple[ir.Model, list[tuple[ir.Value, ir.Value]]]:
    """Return the model without the big tensors of its bodies: a copy, where there are any.

    Each comes as what its readers read now, and the initializer that it was.
    """
    if not any(graph.initializers for path, graph in iter_graphs(model) if path):
        return model, []
    clone = clone_model(model)
    scope = NameScope(clone)
    lifted = []
    for (path, graph), (_, light) in zip(iter_graphs(model), list(iter_graphs(clone)), strict=True):
        outputs = set(light.outputs)
        for name, value in list(light.initializers.items() if path else ()):
            tensor = value.const_value
            if tensor is None:
                continue
            # A body cannot return a value of the outer graph, so such a tensor stays where it is.
            if not _is_big(tensor) or value in outputs:
                value.const_value = inline_copy(tensor)
                continue
            light.initializers.pop(name)
            stand_in = holding(value, None)
            stand_in.name = scope.fresh(name)
            value.replace_all_uses_with(stand_in)
            lifted.append((stand_in, graph.initializers[name]))
    return clone, lifted
