"""Check that a model is valid ONNX and sorted, or, by its hash, that it is the same one."""

from __future__ import annotations

import hashlib

import onnx
import onnx_ir as ir

from bitwright.errors import ModelError
from bitwright.graph.cloning import strip_weights
from bitwright.graph.runtime_ops import move_apart
from bitwright.graph.source import try_source
from bitwright.graph.subgraphs import iter_graphs, qualified_name, subgraphs_of
from bitwright.graph.tensors import release_file, tensor_slots
from bitwright.support.wording import reason_of

_STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training"})


def check_model(model: ir.Model) -> None:
    """Raise a ModelError unless the model is well formed and its nodes are in order.

    The full check, which also infers every shape, runs where all operators are ONNX's own; a model
    with com.microsoft or custom operators gets the structural check. What ONNX Runtime has in
    ONNX's domain, and ONNX does not, is the runtime's to judge.
    """
    check_order(model)
    try_source(model)
    proto = strip_weights(model).proto
    # The checker wants a shape on every output; ONNX itself and its runtimes do not.
    shaped = [
        output
        for output in proto.graph.output
        if not output.type.HasField("tensor_type") or output.type.tensor_type.HasField("shape")
    ]
    del proto.graph.output[:]
    proto.graph.output.extend(shaped)
    foreign = move_apart(proto) or any(
        node.domain not in _STANDARD_DOMAINS for node in model.graph.all_nodes()
    )
    try:
        onnx.checker.check_model(proto, full_check=not (foreign or model.functions))
    except Exception as error:
        raise ModelError(f"the model is not valid ONNX: {reason_of(error)}.") from error


def check_order(model: ir.Model) -> None:
    """Raise a ModelError that names the first node which reads a value before it is made."""
    _check_order_in(model.graph, set(), "")


def is_in_order(model: ir.Model) -> bool:
    """Return whether each value of the main graph and its bodies is made before it is read."""
    try:
        check_order(model)
    except ModelError:
        return False
    return True


def _check_order_in(graph: ir.Graph, outer: set[ir.Value], path: str) -> None:
    ready = outer | set(graph.inputs) | set(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in ready:
                reader = qualified_name(path, node.name or node.op_type)
                if value.producer() is None and value.graph is None:
                    raise ModelError(
                        f"node {reader!r} reads {value.name!r}, which no node makes and which is "
                        "neither an input nor an initializer; add it, or export the model again."
                    )
                raise ModelError(
                    f"node {reader!r} reads {value.name!r} "
                    "before any node makes it; sort the graph or add the missing node."
                )
        for attribute, body in subgraphs_of(node):
            step = f"{node.name or node.op_type}/{attribute}"
            _check_order_in(body, ready, f"{path}/{step}" if path else step)
        ready.update(node.outputs)
    for value in graph.outputs:
        if value not in ready:
            raise ModelError(
                f"no node makes the graph output {qualified_name(path, value.name or '')!r}."
            )


_PLAIN = {ir.AttributeType[name] for name in "INT INTS FLOAT FLOATS STRING STRINGS".split()}


def fingerprint(model: ir.Model, *, weights: bool = False) -> str:
    """Return a hash of nodes, attributes, names and shapes; with `weights` also of every value."""
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
            release_file(tensor)
    return digest.hexdigest()


def _plain_attributes(node: ir.Node) -> list[tuple[str, str, object]]:
    """Return the numbers and strings of a node; graphs and tensors are hashed on their own."""
    return [
        (name, attribute.type.name, attribute.value)
        for name, attribute in sorted(node.attributes.items())
        if attribute.type in _PLAIN and not attribute.is_ref()
    ]
