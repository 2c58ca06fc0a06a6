"""Shift the channels of a tensor to be centred on zero, and correct its readers for it.

X. Wei et al., "Outlier Suppression+" (2023, arXiv:2304.09145), section 3.1: the outliers of
transformers often lie on one side. A product x W + b is (x - z) W + (b + z W): what is subtracted
from each channel is subtracted from the bias of the norm or product that computes x, and what it
amounts to behind the weights is added to the bias of each product that reads x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.decide.ops.linear import LinearNode
from bitwright.equalize.constants import matrix_of, read_inline
from bitwright.graph import NameScope, float_constant_of, input_at, is_private, maker_of
from bitwright.graph.editing import add_initializer, insert_behind_value, replace_constant
from bitwright.numerics.scales import fits
from bitwright.support.array_types import F64, Array

_NORMS = op_types(lambda op: op.normalizes == "last axes" and op.bias is not None)

_Place = tuple[ir.Node, int]
"""A node, and which of its inputs is a constant that it adds to each channel."""


@dataclass(frozen=True, slots=True)
class Shift:
    """What changes in a graph when the channels of a tensor are shifted."""

    biases: dict[_Place, F64] = field(default_factory=dict)
    """What is added to constants; a bias that is left out counts as zeros."""
    sums: list[tuple[ir.Node, F64]] = field(default_factory=list)
    """Products without a bias, and the constant of a new Add behind each."""

    def apply(self, names: NameScope) -> list[str]:
        """Change the graph, and return the names of the nodes that were added."""
        for (node, at), more in self.biases.items():
            replace_constant(node, at, _sum_at((node, at), more), f"{node.name}_bias", names)
        return [_insert_sum(node, more, names) for node, more in self.sums]

    def add(self, place: _Place | None, more: F64) -> bool:
        """Add to a constant; return whether there is one."""
        if place is not None:
            self.biases[place] = self.biases.get(place, np.zeros_like(more)) + more
        return place is not None

    def read_by(self, node: ir.Node, shifts: F64) -> bool:
        """Correct a product for the shift of the tensor that it reads.

        Return whether it can: a Conv that pads with zeros would need other numbers at its border.
        """
        result, linear = node.outputs[0], _linear_of(node)
        if linear is None or linear.in_channels != shifts.size:
            return False
        weights = linear.by_channel(linear.weight).astype(np.float64)
        group, _, inputs, _ = weights.shape
        more = np.einsum("goik,gi->go", weights, shifts.reshape(group, inputs)).reshape(-1)
        if node.op_type == "Conv":
            return self.add((node, 2) if _takes_channels((node, 2), more.size) else None, more)
        if node.op_type == "Gemm":
            return self.add(_bias_behind(result, more.size), more)
        reader = next(iter(result.uses())).node if is_private(result) else None
        adds = reader is not None and reader.op_type == "Add"
        place = _bias_behind(reader.outputs[0], more.size) if adds and reader else None
        if not self.add(place, more):
            self.sums.append((node, more))
        return True

    def fits(self) -> bool:
        """Return whether all constants stay finite."""
        arrays = [_sum_at(*change) for change in self.biases.items()]
        arrays += [more.astype(_dtype_of(node)) for node, more in self.sums]
        return all(fits(array, array.dtype) for array in arrays)


def find_shift(source: ir.Value, readers: Sequence[ir.Node], shifts: F64) -> Shift | None:
    """Return what changes where the channels (last axis) of a tensor become smaller by `shifts`.

    None where that cannot be: where nothing that computes the tensor adds a constant, or where
    somebody else reads it. A residual Add may read it, if its other summand makes up for it.
    """
    shift = Shift()
    if source.is_graph_output() or not shift.add(_bias_behind(source, shifts.size), -shifts):
        return None
    for node, index in source.uses():
        if node in readers and index == 0:
            complete = matrix_of(node) is not None and shift.read_by(node, shifts)
        elif node.op_type == "Add" and not node.domain:
            other = node.inputs[1 - index]
            private = other is not None and is_private(other)
            complete = private and shift.add(_bias_behind(other, shifts.size), shifts)
        else:
            complete = False
        if not complete:
            return None
    return shift if shift.fits() else None


def _bias_behind(value: ir.Value | None, channels: int) -> _Place | None:
    """Return the constant that the node which computes a tensor adds to its channels."""
    node = maker_of(value)
    if node is None or node.domain or value is not node.outputs[0]:
        return None
    if node.op_type == "Add":
        places = ((node, index) for index in (1, 0))
        given = (place for place in places if float_constant_of(node.inputs[place[1]]) is not None)
        return next((place for place in given if _takes_channels(place, channels)), None)
    if node.op_type in _NORMS:
        axis = node.attributes.get_int("axis", -1)
        if axis != -1 and (value.shape is None or axis != len(value.shape) - 1):
            return None  # it normalizes over more than the channels
    elif node.op_type != "Gemm" or node.attributes.get_float("beta", 1.0) != 1:
        return None
    return (node, 2) if _takes_channels((node, 2), channels) else None


def _takes_channels(place: _Place, channels: int) -> bool:
    """Return whether an input is a constant, or left out, that may differ in each channel."""
    given = input_at(*place)
    array = float_constant_of(given)
    if array is None:
        return given is None
    return array.ndim == 0 or array.shape[-1] in (1, channels)


def _linear_of(node: ir.Node) -> LinearNode | None:
    """Return the product whose outputs change by a constant when its inputs do."""
    if node.domain:
        return None
    if node.op_type == "Conv":
        weight = float_constant_of(node.inputs[1])
        padded = any(node.attributes.get_ints("pads", []))
        padded |= node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        return None if weight is None or padded else LinearNode(node, weight)
    matrix = matrix_of(node)
    if matrix is None or node.attributes.get_float("alpha", 1.0) != 1:
        return None
    return LinearNode(node, np.asarray(read_inline(matrix.tensor)))


def _sum_at(place: _Place, more: F64) -> Array:
    """Return the constant at an input with an amount added to each channel."""
    old = float_constant_of(input_at(*place))
    if old is not None:
        return np.asarray(old.astype(np.float64) + more).astype(old.dtype)
    return more.astype(_dtype_of(place[0]))


def _dtype_of(node: ir.Node) -> np.dtype[Any]:
    dtype = node.outputs[0].dtype
    return np.dtype(np.float32 if dtype is None else dtype.numpy())


def _insert_sum(node: ir.Node, more: F64, names: NameScope) -> str:
    assert isinstance(node.graph, ir.Graph)
    label = node.outputs[0].name or node.name or "product"
    array = more.astype(_dtype_of(node))
    constant = add_initializer(node.graph, names, f"{label}_shift", array)
    name = names.fresh(f"{node.name or label}_shift")
    insert_behind_value(
        node.outputs[0], "Add", [constant], renamed=names.fresh(f"{label}_shifted"), name=name
    )
    return name
