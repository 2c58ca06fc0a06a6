"""Clones of a model that share its tensors, and protobuf messages of it without its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from bitwright.errors import BitwrightError, ModelError
from bitwright.graph.names import NameScope
from bitwright.graph.serialization import device_configurations, write_graph
from bitwright.graph.subgraphs import iter_graphs, values_of
from bitwright.graph.tensors import inline_copy
from bitwright.support.collector import without_collection


@without_collection()
def clone_model(model: ir.Model) -> ir.Model:
    """Return a copy whose graphs, nodes and values are new and whose tensors are shared."""
    try:
        clone = model.clone()
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            "the model's nodes are not in topological order; sort it with model.graph.sort() first."
        ) from error
    # onnx-ir shares the type objects between the two, and setting `value.dtype` writes into them.
    for _, graph in iter_graphs(clone):
        for value in values_of(graph):
            value.type = _copy_type(value.type)
    clone.meta.update(model.meta)
    return clone


def _copy_type(given: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(given, ir.TensorType):  # nearly all are: the general way takes ten times as long
        return ir.TensorType(given.dtype, denotation=given.denotation)
    return copy.deepcopy(given)


@without_collection()
def to_message(
    model: ir.Model,
    *,
    inputs: Iterable[ir.Value] | None = None,
    initializers: Iterable[ir.Value] | None = None,
) -> onnx.ModelProto:
    """Return the message of a model, with these in place of its own; the model is not touched.

    A copy of a graph of thousands of nodes takes as long as to write it down.
    """
    graph = model.graph
    around: dict[str, Any] = {
        "doc_string": graph.doc_string,
        "opset_imports": graph.opset_imports,
        "name": graph.name,
        "metadata_props": graph.metadata_props,
    }
    view = ir.GraphView(
        tuple(graph.inputs if inputs is None else inputs),
        graph.outputs,
        nodes=graph,
        initializers=tuple(graph.initializers.values() if initializers is None else initializers),
        **around,
    )
    # Below IR 10, values of functions are described behind those of the main graph.
    apart = not model.functions or model.ir_version >= 10
    bare = ir.GraphView((), (), nodes=(), **around)
    whole = _with_graph(model, bare if apart else view)
    try:
        message = ir.to_proto(whole)
        if apart:
            write_graph(message.graph, view, model.ir_version)
    except ir.serde.SerdeError as error:
        # A tensor that is made only now may be refused, and says why.
        own = _own_error(error)
        if own is None:
            raise
        raise own from error
    return message


def _with_graph(model: ir.Model, graph: ir.GraphView) -> ir.Model:
    """Return a model that has everything of another but its graph."""
    configurations = device_configurations(model)
    devices: dict[str, Any] = {"device_configurations": configurations} if configurations else {}
    return ir.Model(
        graph,  # type: ignore[arg-type]
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(model.functions.values()),
        metadata_props=model.metadata_props,
        **devices,
    )


def value_with_tensor(value: ir.Value, tensor: ir.TensorProtocol | None) -> ir.Value:
    """Return a value of the same name that holds another tensor, or none: then it is an input.

    An input needs a type and a shape, which are those of the tensor where the value has none.
    """
    shown = value.const_value if tensor is None else tensor
    kind, shape = value.type, value.shape
    if tensor is None and shown is not None:
        kind = ir.TensorType(shown.dtype) if value.dtype is None else kind
        shape = ir.Shape(shown.shape.numpy()) if shape is None else shape
    result = ir.Value(
        name=value.name,
        type=kind,
        shape=shape,
        doc_string=value.doc_string,
        const_value=tensor,
        metadata_props=dict(value.metadata_props),
    )
    result.meta.update(value.meta)
    return result


BIG_TENSOR_BYTES = 1024


class StrippedModel(NamedTuple):
    """The message, and the initializer that each placeholder input stands for.

    Placeholders come behind the model's own inputs.
    """

    proto: onnx.ModelProto
    placeholders: dict[str, ir.Value]


def strip_weights(model: ir.Model) -> StrippedModel:
    """Return a message of the model without its weight data, for ONNX's C++ functions.

    Those take and return whole messages, which cannot pass 2 GB. Here every big tensor, at any
    level, is an input of the main graph with the same type and shape; small tensors stay, because
    shape inference and the version converter read their values. The model is not touched.
    """
    light, lifted = _lift_from_bodies(model)
    inputs = list(light.graph.inputs)
    own = {value: position for position, value in enumerate(inputs)}
    initializers: list[ir.Value] = []
    placeholders: dict[str, ir.Value] = {}
    for name, value in light.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and _is_big(tensor):
            stand_in = value_with_tensor(value, None)
            if value in own:
                inputs[own[value]] = stand_in
            else:
                inputs.append(stand_in)
            placeholders[name] = model.graph.initializers[name]
        elif isinstance(tensor, ir.ExternalTensor):
            initializers.append(value_with_tensor(value, inline_copy(tensor)))
        else:
            initializers.append(value)
    for stand_in, original in lifted:
        inputs.append(stand_in)
        placeholders[stand_in.name or ""] = original
    proto = to_message(light, inputs=inputs, initializers=initializers)
    # Below IR 4 each initializer must be an input, and we may just have taken that away.
    proto.ir_version = max(4, proto.ir_version)
    return StrippedModel(proto, placeholders)


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
            stand_in = value_with_tensor(value, None)
            stand_in.name = scope.fresh(name)
            value.replace_all_uses_with(stand_in)
            lifted.append((stand_in, graph.initializers[name]))
    return clone, lifted


def _own_error(error: BaseException) -> BitwrightError | None:
    """Return our error that another was raised from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, BitwrightError):
        cause = cause.__cause__
    return cause
