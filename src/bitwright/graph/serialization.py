"""Protobuf messages of graphs, written as onnx-ir writes them, in a quarter of the time.

A job serializes a model half a dozen times (sessions, checks, shape inference, its size, its file),
and in graphs of thousands of nodes that was the largest part of it: onnx-ir makes a message for
each dimension of each tensor. Here a type and shape that was written before is copied whole, and a
node is made in one call.
"""

from __future__ import annotations

import inspect
from typing import Any

import onnx
import onnx_ir as ir

_ANNOTATION = "quant_parameter_tensor_names"
"""Under which onnx-ir keeps the annotations of quantized tensors."""
_TAKES_VERSION = "model_ir_version" in inspect.signature(ir.serde.serialize_node_into).parameters
"""Whether onnx-ir asks for the IR version, as it does from 1.1 on for configurations of devices."""


def device_configurations(of: ir.Model | ir.Node) -> tuple[object, ...]:
    """Return how something is spread over devices; onnx-ir below 1.1 knows nothing of it."""
    return tuple(getattr(of, "device_configurations", ()))


def write_graph(message: onnx.GraphProto, graph: ir.GraphView, ir_version: int) -> None:
    """Add inputs, initializers, nodes and outputs to a message that has none of them."""
    writer = _ValueWriter()
    initializers = set(graph.initializers)
    for value in graph.inputs:
        writer.write(message.input.add(), value)
        if value.name not in initializers:
            _annotate(message, value)
    inputs = {value.name for value in graph.inputs}
    for value in graph.initializers.values():
        _annotate(message, value)
        if value.name not in inputs and _says_something(value):
            writer.write(message.value_info.add(), value)
        if value.const_value is not None:
            value.const_value.name = value.name
            _write_tensor(message, value.const_value)
    for node in graph:
        _write_node(message, node, ir_version)
        for value in node.outputs:
            if value.is_graph_output():
                continue
            _annotate(message, value)
            if _says_something(value):
                writer.write(message.value_info.add(), value)
    for value in graph.outputs:
        writer.write(message.output.add(), value)
        _annotate(message, value)


def _write_tensor(message: onnx.GraphProto, tensor: ir.TensorProtocol) -> None:
    if type(tensor) is not ir.Tensor or tensor.doc_string or tensor.metadata_props:
        ir.serde.serialize_tensor_into(message.initializer.add(), tensor)
        return
    message.initializer.add(
        name=tensor.name,
        data_type=tensor.dtype.value,
        dims=tensor.shape.numpy(),
        raw_data=tensor.tobytes(),
    )


def _write_node(message: onnx.GraphProto, node: ir.Node, ir_version: int) -> None:
    if node.overload or node.doc_string or node.metadata_props or device_configurations(node):
        version: dict[str, Any] = {"model_ir_version": ir_version} if _TAKES_VERSION else {}
        ir.serde.serialize_node_into(message.node.add(), node, **version)
        return
    outputs = [value.name or "" for value in node.outputs]
    while outputs and not outputs[-1]:  # optional ones that are left out
        outputs.pop()
    written = message.node.add(
        op_type=node.op_type,
        input=["" if value is None else value.name for value in node.inputs],
        output=outputs,
    )
    if node.domain:
        written.domain = node.domain
    if node.name:
        written.name = node.name
    for attribute in node.attributes.values():
        if attribute.is_ref():
            ir.serde.serialize_reference_attribute_into(written.attribute.add(), attribute)
        else:
            ir.serde.serialize_attribute_into(written.attribute.add(), attribute)


def _says_something(value: ir.Value) -> bool:
    return bool(value.name) and (
        value.type is not None
        or value.shape is not None
        or bool(value.metadata_props)
        or bool(value.doc_string)
    )


def _annotate(message: onnx.GraphProto, value: ir.Value) -> None:
    names = value.meta.get(_ANNOTATION)
    if names:
        annotation = message.quantization_annotation.add(tensor_name=value.name)
        for key in sorted(names):
            annotation.quant_parameter_tensor_names.add(key=key, value=names[key])


class _ValueWriter:
    """Writes values; types and shapes that many of them have are made once."""

    def __init__(self) -> None:
        self._types: dict[object, bytes] = {}

    def write(self, message: onnx.ValueInfoProto, value: ir.Value) -> None:
        kind, shape = value.type, value.shape
        plain = (
            type(kind) is ir.TensorType
            and not kind.denotation
            and not value.metadata_props
            and not value.doc_string
        )
        denoted = shape is not None and any(map(shape.get_denotation, range(len(shape))))
        if not plain or denoted:
            ir.serde.serialize_value_into(message, value)
            return
        assert isinstance(kind, ir.TensorType)
        key = (kind.dtype, None if shape is None else shape.dims)
        known = self._types.get(key)
        if known is None:
            ir.serde.serialize_value_into(message, value)
            self._types[key] = message.type.SerializeToString()
            return
        message.name = value.name or ""
        message.type.MergeFromString(known)
