"""Fold constant scales and shifts into the linear node beside them: fewer tensors to quantize.

Mul, Div, Add and Sub with a constant compute f y + s, a scalar or a number for each channel. Behind
or before a linear node that is a change of its weight and bias; `linear` has the formulas. A scale
also moves past a shift that has to stay: f x + s = f (x + s / f).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import rule_of
from bitwright.decide.ops.matching import index_of, least_rank, private_reader
from bitwright.graph import NameScope, iter_graphs, remove_nodes, replace_constant
from bitwright.graph.constants import constant_tensor, float_constant_of, is_constant, maker_of
from bitwright.numerics.scales import fits
from bitwright.prepare.linear import (
    Linear,
    absorb_after,
    absorb_before,
    linear_after,
    linear_before,
    spread,
)
from bitwright.prepare.passes import PassResult
from bitwright.support.array_types import Array

MAX_UNEVENNESS = 8.0
"""Largest over smallest scale of the channels that is folded into the node behind it.

What was scaled is then quantized before it is scaled, all channels by one scale: a table's columns
would share the steps of the largest. Means and deviations of images differ by a few percent."""


def fold_scale_shift(model: ir.Model, *, ahead: bool = True) -> PassResult:
    """Fold every constant scale and shift that a linear node can take; return how many.

    With ahead=False only those behind a linear node, which multiply its output channels.

    Linear nodes are Conv, ConvTranspose, Gemm and MatMul with a constant weight; a MatMul takes a
    shift only into an addition of a constant behind it. One node stays where the tensor in between
    has other readers, where its constant is computed at run time or differs within a channel, and
    where a shift comes before a padded Conv, whose border it does not reach.
    """
    # Before opset 7 these operators did not broadcast, but aligned by an attribute.
    if model.opset_imports.get("", 0) < 7:
        return PassResult()
    names = NameScope(model)
    folded = 0
    for _, graph in iter_graphs(model):
        # Backwards in what is left: the node closest to the linear one has to go first.
        for node in list(graph):
            folded += _fold_back(node, names)
        for node in reversed(list(graph) if ahead else []):
            folded += _fold_ahead(node, names)
    return PassResult(folded)


@dataclass(frozen=True, slots=True)
class _Affine:
    """A node that computes factor * value + shift, both in float64 and broadcast as they are."""

    value: ir.Value
    factor: Array
    shift: Array


def _read(node: ir.Node) -> _Affine | None:
    if node.domain or not rule_of(node.op_type).affine:
        return None
    for index in (1, 0):
        value, constant = node.inputs[1 - index], _read_vector(node.inputs[index])
        if value is None or constant is None or is_constant(value):
            continue
        one, zero = np.ones_like(constant), np.zeros_like(constant)
        match node.op_type:
            case "Add":
                affine = _Affine(value, one, constant)
            case "Sub":
                affine = _Affine(value, one, -constant) if index else _Affine(value, -one, constant)
            case "Mul":
                affine = _Affine(value, constant, zero)
            case _ if index and constant.all():
                affine = _Affine(value, 1 / constant, zero)
            case _:
                return None  # a constant divided by a tensor, or a division by zero
        finite = np.isfinite(affine.factor).all() and np.isfinite(affine.shift).all()
        return affine if finite else None
    return None


def _read_vector(value: ir.Value | None) -> Array | None:
    """Return a constant with at most one dimension larger than 1, in float64."""
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != max(tensor.shape.numpy(), default=1):
        return None  # and a large one is not even read
    constant = float_constant_of(value)
    return None if constant is None else constant.astype(np.float64)


def _fold_back(node: ir.Node, names: NameScope) -> bool:
    """Fold a node into the linear node before it."""
    affine = _read(node)
    linear = None if affine is None else linear_before(affine.value, node)
    if affine is None or linear is None:
        return False
    factor, shift = (
        spread(array, linear.out_channels, linear.rank, linear.out_axis)
        for array in (affine.factor, affine.shift)
    )
    if factor is None or shift is None:
        return False
    return absorb_after(linear, node, factor, shift, names)


def _fold_ahead(node: ir.Node, names: NameScope) -> bool:
    """Fold a node into the linear node behind it."""
    affine = _read(node)
    if affine is None or _is_spelled_out(affine.value):
        return False
    linear = linear_after(node.outputs[0])
    if linear is None:
        return not affine.shift.any() and _fold_past_shift(node, affine, names)
    factor = _spread_ahead(affine.factor, affine.value, linear)
    shift = _spread_ahead(affine.shift, affine.value, linear)
    if factor is None or shift is None or _is_uneven(factor):
        return False
    if not absorb_before(linear, factor, shift, names):
        return False
    linear.node.replace_input_with(0, affine.value)
    remove_nodes([node])
    return True


def _fold_past_shift(node: ir.Node, scale: _Affine, names: NameScope) -> bool:
    """Fold a scale that a shift parts from the linear node, and divide the shift by it."""
    adding = private_reader(node.outputs[0])
    shift = None if adding is None else _read(adding)
    if adding is None or shift is None or (shift.factor != 1).any() or not scale.factor.all():
        return False
    linear = linear_after(adding.outputs[0])
    if linear is None:
        return False
    # The divided shift keeps the shape of the scale too, so that all broadcasts as before.
    rank, axis = _input_layout(linear, adding.outputs[0])
    factor = spread(scale.factor, linear.in_channels, rank, axis)
    at = 1 - index_of(adding, node.outputs[0])
    constant = float_constant_of(adding.inputs[at])
    if factor is None or constant is None or _is_uneven(factor):
        return False
    divided = constant.astype(np.float64) / scale.factor
    if not fits(divided, constant.dtype):
        return False
    if not absorb_before(linear, factor, np.zeros_like(factor), names):
        return False
    replace_constant(adding, at, divided.astype(constant.dtype), "shift", names)
    adding.replace_input_with(1 - at, scale.value)
    # Other numbers than before should not go by the same name.
    adding.outputs[0].name = names.fresh(f"{adding.outputs[0].name}_unscaled")
    remove_nodes([node])
    return True


def _is_uneven(factor: Array) -> bool:
    sizes = np.abs(factor)
    return bool(sizes.max(initial=0) > MAX_UNEVENNESS * sizes.min(initial=np.inf))


def _input_layout(linear: Linear, value: ir.Value) -> tuple[int, int]:
    """Return the rank of what a linear node reads, for a MatMul the least, and its channel axis."""
    if linear.node.op_type == "MatMul":
        rank = max(1, least_rank(value))
        return rank, rank - 1
    return linear.weight.ndim, 0 if linear.node.attributes.get_int("transA", 0) else 1


def _spread_ahead(constant: Array, value: ir.Value, linear: Linear) -> Array | None:
    """Return what a constant is for each input channel, where it does not enlarge the value."""
    rank, axis = _input_layout(linear, value)
    shape = value.shape
    if shape is None:
        # The constant has fewer dimensions than the result, or the value has as many itself.
        known = constant.ndim < rank or constant.ndim <= least_rank(value)
        enlarges = not known or constant.size > 1
    else:
        enlarges = len(shape) != rank or (constant.size > 1 and shape[axis] != linear.in_channels)
    return None if enlarges else spread(constant, linear.in_channels, rank, axis)


_MARKS = {"Add": ("Erf", "Tanh"), "Div": ("Sqrt",)}
"""Operators in the factor of a GELU or a norm; `1 / sqrt(...)` is how PyTorch's rsqrt comes
from TorchScript."""


def _is_spelled_out(value: ir.Value) -> bool:
    """Return whether a value is x / sqrt(...), x (1 / sqrt(...)) or x (1 + erf(...)), or so scaled.

    There a layer norm or a GELU is written out. Runtimes recognize it by the scale and the shift
    behind it, and compute it as one node; without them it would stay many.
    """
    node = value.producer()
    affine = None if node is None else _read(node)
    if affine is not None:
        node = affine.value.producer()
    if node is None or node.op_type not in ("Div", "Mul"):
        return False
    for factor in _producers(node):
        if factor.op_type in ("Sqrt", "Reciprocal", "Pow"):
            return True
        marks = _MARKS.get(factor.op_type, ())
        if any(producer.op_type in marks for producer in _producers(factor)):
            return True
    return False


def _producers(node: ir.Node) -> list[ir.Node]:
    return [producer for producer in map(maker_of, node.inputs) if producer is not None]
