"""Gemm nodes of a proto split into MatMul and Add, which is all that most of them are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

__all__ = ["iter_bodies", "read_names", "split_gemms"]

_DEFAULTS = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


def split_gemms(graph: GraphProto) -> None:
    """Split each Gemm without factors and without a transposed A, in a graph and in its bodies.

    A constant B is transposed in place, if nothing else reads it; others by a Transpose node.
    """
    _split([graph], Counter(read_names(graph)))


def read_names(graph: GraphProto) -> Iterator[str]:
    """Yield the name of each input of each node, in a graph and in the bodies of its nodes."""
    for node in graph.node:
        yield from filter(None, node.input)
        for body in iter_bodies(node):
            yield from read_names(body)
            yield from (value.name for value in body.output)


def iter_bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node holds, as those of an If."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _split(path: Sequence[GraphProto], reads: Counter[str]) -> None:
    """Split the Gemms of the last graph of a path from the main graph down to a body."""
    nodes: list[NodeProto] = []
    for node in path[-1].node:
        for body in iter_bodies(node):
            _split([*path, body], reads)
        nodes += _pieces(node, path, reads) if node.op_type == "Gemm" else [node]
    path[-1].ClearField("node")
    path[-1].node.extend(nodes)


def _pieces(node: NodeProto, path: Sequence[GraphProto], reads: Counter[str]) -> list[NodeProto]:
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    settings = {**_DEFAULTS, **given}
    if {**settings, "transB": 0} != _DEFAULTS:
        return [node]
    pieces = []
    weight, biases, result = node.input[1], node.input[2:], node.output[0]
    if settings["transB"] and not (reads[weight] == 1 and _transpose_constant(weight, path)):
        weight += "_Transposed"
        while reads[weight]:  # by another Gemm, maybe in another body
            weight += "_"
        reads[weight] += 1
        pieces.append(_named(node, "Transpose", [node.input[1]], weight))
    product = f"{result}_MatMul" if biases else result
    pieces.append(_named(node, "MatMul", [node.input[0], weight], product))
    pieces += [_named(node, "Add", [product, bias], result) for bias in biases]
    return pieces


def _named(node: NodeProto, op_type: str, inputs: Sequence[str], output: str) -> NodeProto:
    name = f"{node.name}_{op_type}" if node.name else None
    return onnx.helper.make_node(op_type, inputs, [output], name=name)


def _transpose_constant(name: str, path: Sequence[GraphProto]) -> bool:
    """Transpose an initializer and return True, or return False if there is none of its name."""
    for graph in reversed(path):
        for tensor in graph.initializer:
            if tensor.name == name:
                values = onnx.numpy_helper.to_array(tensor).T
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
                declared = next((v for v in graph.input if v.name == name), None)
                if declared is not None:
                    graph.input.remove(declared)
                return True
    return False
