"""What every emitter does to a graph: add a constant, put a node in its place, clear up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.errors import PlanError
from bitwright.graph import NameScope
from bitwright.numerics.types import QType

__all__ = [
    "add_initializer",
    "add_lazy_initializer",
    "insert_node",
    "owner_of",
    "remove_unused_initializers",
]

_PACKED = {
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
}


def add_initializer(
    graph: ir.Graph,
    names: NameScope,
    name: str,
    array: npt.NDArray[Any],
    qtype: QType | None = None,
) -> ir.Value:
    """Return a new constant of the graph; `qtype` says what integers of 4 bits and fewer mean."""
    name = names.fresh(name)
    return _register(graph, _tensor(array, qtype, name), name)


def add_lazy_initializer(
    graph: ir.Graph,
    names: NameScope,
    name: str,
    array: npt.NDArray[Any],
    make: Callable[[], npt.NDArray[Any]],
    qtype: QType | None = None,
) -> ir.Value:
    """Return a new constant that is made each time it is asked for, and not kept.

    `array` is what it is now, of which only shape and type are.
    """
    name = names.fresh(name)
    first = _tensor(array, qtype, name)
    tensor = ir.LazyTensor(
        lambda: _tensor(make(), qtype, name),
        dtype=first.dtype,
        shape=ir.Shape(first.shape.numpy()),
        name=name,
        cache=False,
    )
    return _register(graph, tensor, name)


def _tensor(array: npt.NDArray[Any], qtype: QType | None, name: str) -> ir.Tensor[Any]:
    if qtype is not None and qtype.name in _PACKED:
        array = array.astype(_PACKED[qtype.name])
    dtype = None if qtype is None else ir.DataType(qtype.onnx_type)
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype, name=name)


def _register(graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    graph.register_initializer(value)
    return value


def owner_of(value: ir.Value) -> ir.Graph:
    """Return the graph that a value is made in."""
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise PlanError(f"tensor {value.name!r} belongs to no graph of the model.")
    return graph


def insert_node(graph: ir.Graph, node: ir.Node, after: ir.Node | None) -> None:
    """Put a node behind another, or first of all."""
    if after is not None:
        graph.insert_after(after, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def remove_unused_initializers(model: ir.Model) -> None:
    """Drop the constants that nothing reads any more, in every graph."""
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]
