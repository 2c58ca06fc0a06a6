"""Read the constants of a graph: initializers, and the values of Constant nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

__all__ = [
    "constant_of",
    "constant_tensor",
    "float_constant_of",
    "input_at",
    "is_constant",
    "is_private",
]


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None where it is left out.

    >>> input_at(ir.node("Relu", [ir.Value(name="x")]), 2) is None
    True
    """
    return node.inputs[index] if index < len(node.inputs) else None


def constant_tensor(value: ir.Value | None, *, defaults: bool = False) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, which is not read yet, or None for what is computed.

    An initializer that is also a graph input can be overridden by the caller: it counts as constant
    only with `defaults`.

    >>> constant_tensor(ir.Value(name="w", const_value=ir.tensor([1.0, 2.0]))).shape
    Shape([2])
    """
    if value is None or (value.is_graph_input() and not defaults):
        return None
    return ir.convenience.get_const_tensor(value)


def is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is known before the model runs and cannot be overridden.

    >>> is_constant(ir.Value(name="x"))
    False
    """
    return constant_tensor(value) is not None


def constant_of(value: ir.Value | None, *, defaults: bool = False) -> npt.NDArray[Any] | None:
    """Return the array of a constant, or None for what is computed; see `constant_tensor`.

    >>> constant_of(ir.Value(name="w", const_value=ir.tensor([1, 2])))
    array([1, 2])
    """
    tensor = constant_tensor(value, defaults=defaults)
    return None if tensor is None else np.asarray(tensor.numpy())


def float_constant_of(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return the array of a floating-point constant, else None.

    >>> float_constant_of(ir.Value(name="w", const_value=ir.tensor([1.0, 2.0])))
    array([1., 2.], dtype=float32)
    """
    tensor = constant_tensor(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return np.asarray(tensor.numpy())


def is_private(value: ir.Value) -> bool:
    """Return whether one single node input reads the value, and no caller of the model does.

    >>> is_private(ir.Value(name="x"))
    False
    """
    return len(value.uses()) == 1 and not value.is_graph_output()
