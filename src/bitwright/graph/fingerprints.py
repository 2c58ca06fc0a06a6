"""Hash a model, to check that a plan or a file of sketches belongs to it."""

from __future__ import annotations

import hashlib

import onnx_ir as ir

from bitwright.graph.subgraphs import iter_graphs
from bitwright.graph.tensors import tensor_slots

__all__ = ["fingerprint"]

_PLAIN = (
    ir.AttributeType.INT,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOAT,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRING,
    ir.AttributeType.STRINGS,
)


def fingerprint(model: ir.Model, *, weights: bool = False) -> str:
    """Return a hash of nodes, attributes, names and shapes; with `weights` also of every value.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> len(fingerprint(ir.Model(graph, ir_version=10)))
    64
    """
    digest = hashlib.sha256()
    digest.update(repr(sorted(model.opset_imports.items())).encode())
    for path, graph in iter_graphs(model):
        digest.update(repr((path, [v.name for v in (*graph.inputs, *graph.outputs)])).encode())
        for node in graph:
            inputs = [None if value is None else value.name for value in node.inputs]
            outputs = [value.name for value in node.outputs]
            digest.update(repr((node.domain, node.op_type, node.name, inputs, outputs)).encode())
            digest.update(repr(_plain_attributes(node)).encode())
    for slot in tensor_slots(model):
        tensor = slot.tensor
        digest.update(repr((slot.name, tensor.dtype.name, tuple(tensor.shape))).encode())
        if weights and tensor.dtype != ir.DataType.STRING:
            digest.update(tensor.tobytes())
            if isinstance(tensor, ir.ExternalTensor):
                tensor.release()
    return digest.hexdigest()


def _plain_attributes(node: ir.Node) -> list[tuple[str, str, object]]:
    """Return the numbers and strings of a node; graphs and tensors are hashed on their own."""
    return [
        (name, attribute.type.name, attribute.value)
        for name, attribute in sorted(node.attributes.items())
        if attribute.type in _PLAIN and not attribute.is_ref()
    ]
