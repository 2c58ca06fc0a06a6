"""Fuse the nodes that an instance norm is exported as into InstanceNormalization.

InstanceNormalization computes gamma (x - m) / sqrt(v + epsilon) + beta, with the mean m and the
variance v over all positions of a channel (Ulyanov et al. 2016, arXiv:1607.08022). Exporters spell
it out either so, gamma and beta possibly missing, or with the factor s = gamma / sqrt(v + epsilon)
as x s + (beta - m s).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops.matching import (
    Deviation,
    Matched,
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


@rewrites("Add", "Div", "Mul", since=7)
def fuse_instance_norm(node: ir.Node, names: Scope) -> bool:
    """Replace the nodes of every instance norm, in any order of operands.

    Means are GlobalAveragePool or ReduceMean over all dimensions behind the second. The last tensor
    keeps its name. Nodes stay where a tensor in between has other readers.
    """
    return _fuse_factored(node, names) or _fuse_plain(node, names)


def _fuse_factored(last: ir.Node, names: Scope) -> bool:
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
            root = _match_factor(factor, found)
            if root is None or mean is not root[0].mean or x is not root[0].x:
                continue
            if _replace(last, root[0], root[1], beta, found, names):
                return True
    return False


def _match_factor(factor: ir.Value, matched: Matched) -> tuple[Deviation, Array] | None:
    """Return what gamma / sqrt(v + epsilon) is of, and gamma."""
    inverse = step(factor, "Div", matched)
    if inverse is not None:
        gamma, root = float_constant_of(inverse.inputs[0]), _match_root(inverse.inputs[1], matched)
        return None if gamma is None or root is None else (root, gamma)
    product = step(factor, "Mul", matched)
    for reciprocal, constant in operands(product, "Mul"):
        gamma, tried = float_constant_of(constant), Matched(matched)
        root = None if gamma is None else _match_reciprocal(reciprocal, tried)
        if root is not None and gamma is not None:
            matched.extend(tried[len(matched) :])
            return root, gamma
    return None


def _fuse_plain(first: ir.Node, names: Scope) -> bool:
    """Fuse (x - m) / sqrt(v + epsilon), with or without gamma and beta behind it."""
    is_division = first.op_type == "Div" and not first.domain
    match = _match_root if is_division else _match_reciprocal
    for difference, other in [first.inputs[:2]] if is_division else operands(first, "Mul"):
        matched = Matched([first])
        root = match(other, matched)
        if root is not None and difference is root.difference:
            break
    else:
        return False
    last, gamma, beta = match_gain_and_bias(
        first, matched, lambda array: None if _by_channel(array, root.x) is None else array
    )
    gamma = np.ones((), np.float32) if gamma is None else gamma
    beta = np.zeros((), np.float32) if beta is None else beta
    return _replace(last, root, gamma, beta, matched, names)


def _match_reciprocal(value: ir.Value | None, matched: Matched) -> Deviation | None:
    """Match 1 / sqrt(v + epsilon)."""
    if (reciprocal := step(value, "Reciprocal", matched)) is not None:
        return _match_root(reciprocal.inputs[0], matched)
    division = step(value, "Div", matched)
    if division is None or number(division.inputs[0]) != 1:
        return None
    return _match_root(division.inputs[1], matched)


def _match_root(value: ir.Value | None, matched: Matched) -> Deviation | None:
    return match_deviation(value, matched, _mean_of)


def _mean_of(value: ir.Value, matched: Matched) -> ir.Value | None:
    """Return what a value is the mean of, over all positions of each channel."""
    pool = step(value, "GlobalAveragePool", matched)
    if pool is not None:
        return pool.inputs[0]
    return averaged(value, matched, lambda rank: range(2, rank))


def _by_channel(constant: Array, x: ir.Value) -> Array | None:
    """Return a constant as one number for each channel of x."""
    if x.shape is None or not isinstance(x.shape[1], int):
        return None
    found = spread(constant, x.shape[1], len(x.shape), 1)
    return None if found is None else found.astype(np.float32)


def _replace(
    last: ir.Node, root: Deviation, gamma: Array, beta: Array, matched: Matched, names: Scope
) -> bool:
    scale, shift = _by_channel(gamma, root.x), _by_channel(beta, root.x)
    if scale is None or shift is None or element_type(root.x) != ir.DataType.FLOAT:
        return False
    nodes = matched.in_order()
    if not is_closed(nodes, last):
        return False
    build, name = Builder(last, names), last.outputs[0].name
    inputs = [root.x, build.constant(scale, f"{name}_scale"), build.constant(shift, f"{name}_bias")]
    build.replace("InstanceNormalization", inputs, "_norm", {"epsilon": root.epsilon}, nodes)
    return True
