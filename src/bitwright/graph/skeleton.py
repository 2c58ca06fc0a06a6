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
from bitwright.graph.naming import NameScope
from bitwright.graph.tensors import inline_copy, shape_of
from bitwright.graph.walking import iter_graphs

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
    twin = clone_model(model)
    scope = NameScope(twin)
    placeholders: dict[str, ir.Value] = {}
    pairs = zip(iter_graphs(model), iter_graphs(twin), strict=True)
    originals = [(graph, light) for (_, graph), (_, light) in pairs]
    input_count = len(twin.graph.inputs)
    own_inputs = set(twin.graph.inputs)
    for graph, light in originals:
        outputs = set(light.outputs)
        for name in list(light.initializers):
            value = light.initializers[name]
            tensor = value.const_value
            if tensor is None:
                continue
            # A body cannot return a value of the outer graph, so such a tensor stays where it is.
            stays = light is not twin.graph and value in outputs
            if tensor.nbytes <= BIG_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING or stays:
                value.const_value = inline_copy(tensor)
                continue
            if value.shape is None:
                value.shape = shape_of(tensor)
            if value.dtype is None:
                value.dtype = tensor.dtype
            light.initializers.pop(name)
            value.const_value = None  # before the renaming, which would rename the shared tensor
            if light is not twin.graph:
                value.name = scope.fresh(name)
            if value not in own_inputs:
                twin.graph.inputs.append(value)
            assert value.name is not None
            placeholders[value.name] = graph.initializers[name]
    proto = ir.to_proto(twin)
    # Below IR 4 each initializer must be an input, and we may just have taken that away.
    proto.ir_version = max(4, proto.ir_version)
    return Skeleton(proto, placeholders, input_count)
