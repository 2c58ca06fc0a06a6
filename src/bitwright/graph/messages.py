"""Protobuf messages of a model with other inputs or initializers, without cloning it.

A copy of a graph of thousands of nodes takes as long as to write it down.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

__all__ = ["holding", "to_message"]


def to_message(
    model: ir.Model,
    *,
    inputs: Iterable[ir.Value] | None = None,
    initializers: Iterable[ir.Value] | None = None,
) -> onnx.ModelProto:
    """Return the message of a model, with these in place of its own; the model is not touched.

    >>> x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    >>> weight = ir.Value(name="w", const_value=ir.tensor([1.0]))
    >>> graph = ir.Graph([x], [], nodes=[], initializers=[weight], opset_imports={"": 21})
    >>> model = ir.Model(graph, ir_version=10)
    >>> message = to_message(model, inputs=[x, holding(weight, None)], initializers=[])
    >>> [value.name for value in message.graph.input], len(message.graph.initializer)
    (['x', 'w'], 0)
    """
    graph = model.graph
    view = ir.GraphView(
        tuple(graph.inputs if inputs is None else inputs),
        graph.outputs,
        nodes=graph,
        initializers=tuple(graph.initializers.values() if initializers is None else initializers),
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    return ir.to_proto(
        ir.Model(
            view,  # type: ignore[arg-type]  # onnx-ir writes a view as it does a graph
            ir_version=model.ir_version,
            producer_name=model.producer_name,
            producer_version=model.producer_version,
            domain=model.domain,
            model_version=model.model_version,
            doc_string=model.doc_string,
            functions=tuple(model.functions.values()),
            metadata_props=model.metadata_props,
            device_configurations=model.device_configurations,
        )
    )


def holding(value: ir.Value, tensor: ir.TensorProtocol | None) -> ir.Value:
    """Return a value of the same name that holds another tensor, or none: then it is an input.

    An input needs a type and a shape, which are those of the tensor where the value has none.

    >>> weight = ir.Value(name="w", const_value=ir.tensor([1.0]))
    >>> holding(weight, None).dtype
    FLOAT
    """
    shown = value.const_value if tensor is None else tensor
    kind, shape = value.type, value.shape
    if tensor is None and shown is not None:
        kind = ir.TensorType(shown.dtype) if value.dtype is None else kind
        shape = ir.Shape(shown.shape.numpy()) if shape is None else shape
    held = ir.Value(
        name=value.name,
        type=kind,
        shape=shape,
        doc_string=value.doc_string,
        const_value=tensor,
        metadata_props=dict(value.metadata_props),
    )
    held.meta.update(value.meta)
    return held
