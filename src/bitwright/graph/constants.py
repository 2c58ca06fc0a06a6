"""Constants of a graph: read one, and replace it for one node but not for its other users."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from bitwright.graph.names import NameScope

__all__ = [
    "drop_if_unused",
    "is_constant",
    "is_private",
    "read_constant",
    "read_tensor",
    "replace_constant",
]


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is known before the model runs and cannot be overridden.

    >>> is_constant(ir.Value(name="x"))
    False
    """
    if value is None or value.is_graph_input():
        return False
    return ir.convenience.get_const_tensor(value) is not None


def read_constant(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return the array of a constant float value, else None. Nothing is read before this call.

    >>> read_constant(ir.Value(name="w", const_value=ir.tensor([1.0, 2.0])))
    array([1., 2.], dtype=float32)
    """
    if value is None or not is_constant(value):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return np.asarray(tensor.numpy())


def read_tensor(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return the array of a constant of any type, else None.

    >>> read_tensor(ir.Value(name="w", const_value=ir.tensor([1, 2])))
    array([1, 2])
    """
    if value is None or not is_constant(value):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def is_private(value: ir.Value) -> bool:
    """Return whether one single node input reads the value, and no caller of the model does.

    >>> is_private(ir.Value(name="x"))
    False
    """
    return len(value.uses()) == 1 and not value.is_graph_output()


def replace_constant(
    node: ir.Node,
    index: int,
    array: npt.NDArray[Any] | ir.TensorProtocol,
    name: str,
    names: NameScope,
) -> None:
    """Give a node input a new array: in place where it is the only user, else as a copy.

    `name` is what a new initializer is called if the input has none to copy the name from.
    """
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    old = node.inputs[index]
    # Arithmetic with arrays of no axis gives numpy's scalars.
    if isinstance(array, np.ndarray | np.generic):
        tensor: ir.TensorProtocol = ir.tensor(np.ascontiguousarray(array))
    else:
        tensor = array
    shape = ir.Shape(tensor.shape.numpy())
    if old is not None and old.name and old.is_initializer() and is_private(old):
        tensor.name = old.name
        old.const_value, old.shape = tensor, shape
        return
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError("functions have no initializers; inline them first")
    fresh = names.fresh(old.name if old is not None and old.name else name)
    tensor.name = fresh
    value = ir.Value(name=fresh, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    graph.register_initializer(value)
    node.replace_input_with(index, value)
    drop_if_unused(old)


def drop_if_unused(value: ir.Value | None) -> None:
    """Remove an initializer that nothing reads any more."""
    if value is None or not value.is_initializer() or value.uses():
        return
    if value.is_graph_output() or value.is_graph_input() or value.graph is None or not value.name:
        return
    value.graph.initializers.pop(value.name)
