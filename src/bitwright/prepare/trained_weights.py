"""Carry a trained weight and its scale through transposes, reshapes and folded factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import rule_of
from bitwright.graph.constants import constant_of
from bitwright.numerics.broadcasting import along_axis
from bitwright.numerics.quantize import quantize
from bitwright.plan import Parameters
from bitwright.support.array_types import Array


def constant_array(value: ir.Value | None) -> Array:
    """Return the values of a constant, which the caller knows to be one."""
    array = constant_of(value)
    assert array is not None
    return array


def move_values(node: ir.Node, array: Array) -> Array | None:
    """Return what an op makes of a constant; None where it says so at run time only."""
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", None)
        return np.transpose(array, None if order is None else tuple(order))
    shape = node.outputs[0].shape
    if node.op_type == "Reshape" and node.inputs[1] is not None:
        sizes = constant_array(node.inputs[1]).tolist()
        if not node.attributes.get_int("allowzero", 0):
            sizes = [array.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
        return array.reshape(sizes)
    if shape is None or not shape.is_static():
        return None
    return array.reshape(shape.numpy())


def move_axis(
    node: ir.Node, before: tuple[int, ...], behind: tuple[int, ...], parameters: Parameters
) -> int | None:
    """Return the channel axis after the move; None where there is no such axis any more."""
    axis = parameters.axis
    if axis is None or parameters.block_size:
        return None
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", None)
        places = list(reversed(range(len(before)))) if order is None else list(order)
        return places.index(axis)
    # A reshape keeps the channels where as many values as before stand before and behind them.
    leading = int(np.prod(before[:axis]))
    for place, size in enumerate(behind):
        if size == before[axis] and int(np.prod(behind[:place])) == leading:
            return place
    return None


def rescale(node: ir.Node, old: Array, new: Array, parameters: Parameters) -> Parameters | None:
    """Return the parameters after each output channel was multiplied by a number.

    None where the weight changed otherwise, or where a channel changed its sign and the integers
    cannot.
    """
    if old.shape != new.shape or parameters.block_size:
        return None
    channel_axis = rule_of(node.op_type).channel_axis
    found = None if channel_axis is None else channel_axis(node, 1)
    axis = old.ndim - 1 if found is None else found
    rest = tuple(i for i in range(old.ndim) if i != axis)
    if parameters.axis not in (None, axis):
        return None
    wide_old, wide_new = old.astype(np.float64), new.astype(np.float64)
    squares = (wide_old**2).sum(axis=rest)
    products = (wide_old * wide_new).sum(axis=rest)
    factor = np.where(squares > 0, products / np.where(squares > 0, squares, 1), 1.0)
    scaled = wide_old * along_axis(factor, axis, old.ndim)
    if not np.allclose(scaled, wide_new, rtol=1e-4, atol=1e-6 * np.abs(new).max()):
        return None
    # Exporters multiply by a batch norm's factor before the pair and divide behind it: what is
    # left of the two is rounding, and the trained scale is meant.
    factor = np.where(np.abs(factor - 1) < 1e-5, 1.0, factor)
    if (factor == 1).all():
        return parameters
    if (factor < 0).any():
        lowest = quantize(
            old, np.float32(parameters.scale), parameters.zero_point, parameters.qtype,
            axis=parameters.axis,
        ).min()  # fmt: skip
        if np.any(parameters.zero_point) or lowest == parameters.qtype.lowest:
            return None
    factor = np.where(factor == 0, 1.0, np.abs(factor))
    if (factor == factor[0]).all() and parameters.axis is None:
        return replace(parameters, scale=np.asarray(parameters.scale * factor[0]))
    zeros = np.broadcast_to(parameters.zero_point, factor.shape).copy()
    return replace(parameters, scale=parameters.scale * factor, zero_point=zeros, axis=axis)
