"""Fuse the nodes that an instance norm or a layer norm is exported as into one node.

Both compute gamma (x - m) / sqrt(v + epsilon) + beta: InstanceNormalization with the mean m and the
variance v over all positions of a channel (Ulyanov et al. 2016, arXiv:1607.08022),
LayerNormalization (opset 17) over the last axis (Ba et al. 2016, arXiv:1607.06450). Exporters spell
them out so, gamma and beta possibly missing, and instance norms also with the factor
s = gamma / sqrt(v + epsilon) as x s + (beta - m s). Quantized piece by piece, the square and the
root lose nearly all of it.

An RMS norm divides by the root mean square alone (Zhang and Sennrich 2019, arXiv:1910.07467). It is
the first half of the layer norm of x beside -x: their mean is 0, their variance x's mean square.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.matching import (
    Deviation,
    Matched,
    MeanOf,
    averaged,
    is_closed,
    match_deviation,
    match_gain_and_bias,
    number,
    operands,
    step,
)
from bitwright.graph import element_type, float_constant_of
from bitwright.prepare.linear import spread
from bitwright.prepare.passes import Builder, Scope, rewrites
from bitwright.support.array_types import Array

_LAYER_NORM_OPSET = 17


class _Norm(NamedTuple):
    op_type: str
    mean_of: MeanOf
    read: Callable[[Array, ir.Value], Array | None]
    """Returns a constant as one number for each gain of what is normalized."""
    attributes: dict[str, Any]
    centered: bool = True
    """Whether the mean is subtracted."""

    def root(self, value: ir.Value | None, matched: Matched) -> Deviation | None:
        """Match sqrt(v + epsilon)."""
        return match_deviation(value, matched, self.mean_of, centered=self.centered)

    def reciprocal(self, value: ir.Value | None, matched: Matched) -> Deviation | None:
        """Match 1 / sqrt(v + epsilon)."""
        if (reciprocal := step(value, "Reciprocal", matched)) is not None:
            return self.root(reciprocal.inputs[0], matched)
        division = step(value, "Div", matched)
        if division is None or number(division.inputs[0]) != 1:
            return None
        return self.root(division.inputs[1], matched)


def _mean_of_channel(value: ir.Value, matched: Matched) -> ir.Value | None:
    pool = step(value, "GlobalAveragePool", matched)
    if pool is not None:
        return pool.inputs[0]
    return averaged(value, matched, lambda rank: range(2, rank))


def _by_channel(constant: Array, x: ir.Value) -> Array | None:
    if x.shape is None or not isinstance(x.shape[1], int):
        return None
    found = spread(constant, x.shape[1], len(x.shape), 1)
    return None if found is None else found.astype(np.float32)


def _mean_of_row(value: ir.Value, matched: Matched) -> ir.Value | None:
    return averaged(value, matched, lambda rank: [rank - 1])


def _by_place(constant: Array, x: ir.Value) -> Array | None:
    width = None if x.shape is None else x.shape[-1]
    if not isinstance(width, int) or constant.size not in (1, width) or constant.ndim > 1:
        return None
    return np.broadcast_to(constant.astype(np.float32), (width,)).copy()


_INSTANCE = _Norm("InstanceNormalization", _mean_of_channel, _by_channel, {})
_LAST = {"axis": -1}
_LAYER = _Norm("LayerNormalization", _mean_of_row, _by_place, _LAST)
_RMS = _LAYER._replace(centered=False)


@rewrites("Add", "Div", "Mul", since=7)
def fuse_instance_norm(node: ir.Node, names: Scope) -> bool:
    """Replace the nodes of every instance norm, in any order of operands.

    Means are GlobalAveragePool or ReduceMean over all dimensions behind the second. The last tensor
    keeps its name. Nodes stay where a tensor in between has other readers.
    """
    return _fuse_factored(node, _INSTANCE, names) or _fuse_plain(node, _INSTANCE, names)


@rewrites("Div", since=_LAYER_NORM_OPSET)
def fuse_layer_norm(division: ir.Node, names: Scope) -> bool:
    """Replace the nodes of every layer norm over the last axis.

    The last tensor keeps its name. Nodes stay where a tensor in between has other readers, and in
    models below opset 17.
    """
    return _fuse_plain(division, _LAYER, names)


@rewrites("Div", "Mul", since=_LAYER_NORM_OPSET)
def fuse_rms_norm(node: ir.Node, names: Scope) -> bool:
    """Replace the nodes of every RMS norm over the last axis, so that one node sums its squares."""
    return _fuse_plain(node, _RMS, names)


def _fuse_factored(last: ir.Node, norm: _Norm, names: Scope) -> bool:
    """Fuse x s + (beta - m s), with s = gamma / sqrt(v + epsilon)."""
    for product, rest in operands(last, "Add"):
        matched = Matched([last])
        shift = step(rest, "Sub", matched)
        scaled = step(product, "Mul", matched)
        if shift is None or scaled is None:
            continue
        beta = float_constant_of(shift.inputs[0])
        moved = step(shift.inputs[1], "Mul", matched)
        if beta is None or moved is None:
            continue
        for x, factor in operands(scaled, "Mul"):
            mean = next((m for m, f in operands(moved, "Mul") if f is factor), None)
            found = Matched(matched)
            root = _match_factor(factor, norm, found)
            if root is None or mean is not root[0].mean or x is not root[0].x:
                continue
            if _replace(last, norm, root[0], root[1], beta, found, names):
                return True
    return False


def _match_factor(
    factor: ir.Value, norm: _Norm, matched: Matched
) -> tuple[Deviation, Array] | None:
    """Return what gamma / sqrt(v + epsilon) is of, and gamma."""
    inverse = step(factor, "Div", matched)
    if inverse is not None:
        gamma, root = float_constant_of(inverse.inputs[0]), norm.root(inverse.inputs[1], matched)
        return None if gamma is None or root is None else (root, gamma)
    product = step(factor, "Mul", matched)
    for reciprocal, constant in operands(product, "Mul"):
        gamma, tried = float_constant_of(constant), Matched(matched)
        root = None if gamma is None else norm.reciprocal(reciprocal, tried)
        if root is not None and gamma is not None:
            matched.extend(tried[len(matched) :])
            return root, gamma
    return None


def _fuse_plain(first: ir.Node, norm: _Norm, names: Scope) -> bool:
    """Fuse (x - m) / sqrt(v + epsilon), with or without gamma and beta behind it."""
    is_division = first.op_type == "Div" and not first.domain
    match = norm.root if is_division else norm.reciprocal
    for difference, other in [first.inputs[:2]] if is_division else operands(first, "Mul"):
        matched = Matched([first])
        root = match(other, matched)
        if root is not None and difference is root.difference:
            break
    else:
        return False
    last, gamma, beta = match_gain_and_bias(
        first, matched, lambda array: None if norm.read(array, root.x) is None else array
    )
    gamma = np.ones((), np.float32) if gamma is None else gamma
    beta = np.zeros((), np.float32) if beta is None else beta
    return _replace(last, norm, root, gamma, beta, matched, names)


def _replace(
    last: ir.Node,
    norm: _Norm,
    found: Deviation,
    gamma: Array,
    beta: Array,
    matched: Matched,
    names: Scope,
) -> bool:
    scale, bias = norm.read(gamma, found.x), norm.read(beta, found.x)
    if scale is None or bias is None or element_type(found.x) != ir.DataType.FLOAT:
        return False
    nodes = matched.in_order()
    if not is_closed(nodes, last):
        return False
    build, name = Builder(last, names), last.outputs[0].name
    x, width = found.x, len(scale)
    if not norm.centered:
        x = build.add("Concat", [x, build.add("Neg", [x], f"{name}_minus")], f"{name}_both", _LAST)
        scale, bias = (np.concatenate([array, array]) for array in (scale, bias))
    inputs = [x, build.constant(scale, f"{name}_scale"), build.constant(bias, f"{name}_bias")]
    attributes = {**norm.attributes, "epsilon": found.epsilon}
    if norm.centered:
        build.replace(norm.op_type, inputs, "_norm", attributes, nodes)
        return True
    ends = (("start", 0), ("end", width), ("axis", -1))
    bounds = [build.constant(np.array([number]), f"{name}_{end}") for end, number in ends]
    normed = build.add(norm.op_type, inputs, f"{name}_normed", attributes)
    build.replace("Slice", [normed, *bounds], "_norm", None, nodes)
    return True
