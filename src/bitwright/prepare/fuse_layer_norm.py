"""Fuse the nodes that a layer norm is exported as into LayerNormalization (opset 17).

LayerNormalization computes gamma (x - m) / sqrt(v + epsilon) + beta, with the mean m and the
variance v over the last axis (Ba et al. 2016, arXiv:1607.06450). Exporters for older opsets spell
it out. Quantized piece by piece, the square and the root lose nearly all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.graph.constants import float_constant_of
from bitwright.graph.names import NameScope
from bitwright.graph.shapes import element_type
from bitwright.prepare.linear import Array
from bitwright.prepare.matching import (
    Matched,
    is_closed,
    known_axes,
    number,
    operands,
    private_reader,
    squared,
    step,
)
from bitwright.prepare.passes import Builder, PassResult, rewrite_nodes

__all__ = ["fuse_layer_norm"]

_STANDARD_OPSET = 17


class _Norm(NamedTuple):
    """(x - m) / sqrt(v + epsilon)."""

    x: ir.Value
    width: int
    epsilon: float


def fuse_layer_norm(model: ir.Model) -> PassResult:
    """Replace the nodes of every layer norm over the last axis; return how many.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers, and in
    models below opset 17.

    >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    >>> fuse_layer_norm(ir.Model(graph, ir_version=10)).changed
    0
    """
    return rewrite_nodes(model, ("Div",), _fuse, since=_STANDARD_OPSET)


def _fuse(division: ir.Node, names: NameScope) -> bool:
    matched = Matched([division])
    norm = _match(division, matched)
    if norm is None or element_type(norm.x) != ir.DataType.FLOAT:
        return False
    last = division
    arrays = [np.ones(norm.width, np.float32), np.zeros(norm.width, np.float32)]
    for index, op_type in enumerate(("Mul", "Add")):
        reader = private_reader(last.outputs[0])
        constant = None if reader is None else _vector(reader, op_type, last.outputs[0], norm.width)
        if reader is not None and constant is not None:
            arrays[index], last = constant, reader
            matched.append(reader)
    nodes = matched.in_order()
    if not is_closed(nodes, last):
        return False
    build, name = Builder(last, names), last.outputs[0].name
    gamma, beta = arrays
    inputs = [norm.x, build.constant(gamma, f"{name}_scale"), build.constant(beta, f"{name}_bias")]
    settings = {"axis": -1, "epsilon": norm.epsilon}
    result = build.add("LayerNormalization", inputs, f"{name}_norm", settings, node_name=last.name)
    build.finish(result, *(node for node in nodes if node is not last))
    return True


def _match(division: ir.Node, matched: Matched) -> _Norm | None:
    root = step(division.inputs[1], "Sqrt", matched)
    total = None if root is None else step(root.inputs[0], "Add", matched)
    for variance, constant in operands(total, "Add"):
        epsilon, averaged = number(constant), _mean_of(variance, matched)
        if epsilon is None or averaged is None:
            continue
        difference = squared(averaged, matched)
        subtraction = step(difference, "Sub", matched)
        if subtraction is None or difference is not division.inputs[0]:
            return None
        x, mean = subtraction.inputs
        if x is None or mean is None or _mean_of(mean, matched) is not x or x.shape is None:
            return None
        width = x.shape[-1]
        return _Norm(x, width, epsilon) if isinstance(width, int) else None
    return None


def _mean_of(value: ir.Value, matched: Matched) -> ir.Value | None:
    """Return what a value is the mean of, over the last axis."""
    mean = step(value, "ReduceMean", matched)
    x = None if mean is None else mean.inputs[0]
    if mean is None or x is None or x.shape is None or not mean.attributes.get_int("keepdims", 1):
        return None
    rank, axes = len(x.shape), known_axes(mean)
    return x if axes is not None and [axis % rank for axis in axes] == [rank - 1] else None


def _vector(node: ir.Node, op_type: str, value: ir.Value, width: int) -> Array | None:
    """Return the constant that a node combines a value with, as one number for each place."""
    for read, constant in operands(node, op_type):
        array = float_constant_of(constant) if read is value else None
        if array is not None and array.size in (1, width) and array.ndim <= 1:
            return np.broadcast_to(array.astype(np.float32), (width,)).copy()
    return None
