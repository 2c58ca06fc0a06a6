"""Find the Q/DQ pairs of a trained model, and read their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir

from bitwright.decide.ops import op_types
from bitwright.graph.constants import constant_of, constant_tensor, input_at, is_constant
from bitwright.graph.editing import insert_before, replace_value
from bitwright.numerics.types import QTYPES, UINT8, QType
from bitwright.plan import Parameters
from bitwright.support.array_types import Array

_DOMAINS = ("", "com.microsoft")
# What moves integers as well as it moves floats; tables that are looked up stay integers.
_MOVERS = op_types(
    lambda op: (op.moves or op.pool) and op.keeps_scale is True and op.outputs == (0,)
) - {"Gather", "GatherElements"}
_QTYPES = {t.onnx_type: t for t in QTYPES.values() if not t.shares_exponent}


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor, and the tensor that reads it quantized and dequantized again."""

    source: ir.Value
    result: ir.Value
    parameters: Parameters
    levels: tuple[int, int] | None = None
    """The integers that pass a Clip inside the pair, where not all do."""
    quantizer: ir.Node | None = None
    """None: the source holds integers."""


def is_quantizer(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Return whether a node turns floats into integers by constant or computed parameters."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


def is_dequantizer(node: ir.Node | None) -> bool:
    """Return whether a node turns integers into floats."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in _DOMAINS


def read_pair(dequantizer: ir.Node) -> Pair | str:
    """Return the pair that ends with this node, or why there is none.

    A Clip of the integers may stand between, as torch writes it for a reduced range.
    """
    name = dequantizer.name or dequantizer.op_type
    value = dequantizer.inputs[0]
    if value is None:
        return f"{name!r} reads nothing"
    found = _read_parameters(dequantizer, value)
    if isinstance(found, str):
        return found
    levels: tuple[int, int] | None = None
    while (node := value.producer()) is not None and node.op_type == "Clip" and not node.domain:
        bounds = _clip_levels(node, found.qtype)
        inner = node.inputs[0]
        if bounds is None or inner is None:
            return f"the bounds of {node.name!r} are computed at run time"
        low, high = bounds
        if levels is not None:
            low, high = min(max(levels[0], low), high), max(min(levels[1], high), low)
        levels, value = (low, high), inner
    if levels == (found.qtype.lowest, found.qtype.highest):
        levels = None
    if is_constant(value):
        return Pair(value, dequantizer.outputs[0], found, levels)
    quantizer = value.producer()
    if not is_quantizer(quantizer) or quantizer.inputs[0] is None:
        return f"{name!r} reads integers that are not from a QuantizeLinear"
    before = _read_parameters(quantizer, None)
    if isinstance(before, str):
        return before
    if not same_parameters(before, found):
        return f"{quantizer.name!r} and {name!r} have different parameters"
    return Pair(quantizer.inputs[0], dequantizer.outputs[0], found, levels, quantizer)


def same_parameters(one: Parameters, two: Parameters) -> bool:
    """Return whether both put the same grid over a tensor."""
    return signature(one) == signature(two)


def signature(parameters: Parameters) -> tuple[Any, ...]:
    """Return what is the same for all parameters of one grid, as a key."""
    return (
        parameters.qtype.name,
        np.asarray(parameters.scale).tobytes(),
        np.asarray(parameters.zero_point).tobytes(),
        parameters.axis,
        parameters.block_size,
    )


def lift_dequantizers(graph: ir.Graph) -> None:
    """Turn Q, Transpose, DQ into Q, DQ, Transpose, so that pairs are pairs again."""
    changed = True
    while changed:
        changed = False
        for node in list(graph):
            if not is_dequantizer(node) or node.inputs[0] is None:
                continue
            moved = node.inputs[0]
            mover = moved.producer()
            if (
                mover is None
                or mover.op_type not in _MOVERS
                or mover.graph is not graph
                or mover.inputs[0] is None
                or len(moved.uses()) > 1
                or moved.is_graph_output()
                or sum(bool(v.uses()) for v in mover.outputs) > 1
                or _has_channels(node)
            ):
                continue
            _swap(graph, mover, node)
            changed = True


def _has_channels(node: ir.Node) -> bool:
    tensor = constant_tensor(node.inputs[1], defaults=True)
    return tensor is None or tensor.size != 1


def _swap(graph: ir.Graph, mover: ir.Node, dequantizer: ir.Node) -> None:
    source, result = mover.inputs[0], dequantizer.outputs[0]
    assert source is not None and result.name is not None
    floats = ir.Value(
        name=f"{result.name}_before_{mover.name}", type=result.type, shape=source.shape
    )
    inputs, name = [source, *dequantizer.inputs[1:]], dequantizer.name or ""
    settings, domain = dequantizer.attributes, dequantizer.domain
    insert_before(mover, "DequantizeLinear", inputs, floats, name, settings, domain=domain)
    mover.replace_input_with(0, floats)
    moved, shape = mover.outputs[0], mover.outputs[0].shape or result.shape
    replace_value(result, moved)
    moved.shape = shape
    graph.remove(dequantizer, safe=True)


def _read_parameters(node: ir.Node, integers: ir.Value | None) -> Parameters | str:
    """Return what a Q or DQ node says; a missing zero point is 0, and makes a Q give uint8."""
    scale = constant_of(input_at(node, 1))
    if scale is None:
        return f"the scale of {node.name!r} is computed at run time"
    has_zero = input_at(node, 2) is not None
    zero_point = constant_of(input_at(node, 2))
    if has_zero and zero_point is None:
        return f"the zero point of {node.name!r} is computed at run time"
    qtype = _type_of(node, integers, has_zero)
    if qtype is None:
        return f"the type of the integers of {node.name!r} is not known"
    zeros: Array = np.zeros((), np.int64)
    if zero_point is not None and qtype.is_integer:
        zeros = zero_point.astype(np.int64)
    scales = scale.astype(np.float64)
    if scales.size == 1 and zeros.size == 1:
        return Parameters(qtype, scales.reshape(()), zeros.reshape(()))
    shape = np.broadcast_shapes(scales.shape, zeros.shape)
    return Parameters(
        qtype,
        np.broadcast_to(scales, shape).copy(),
        np.broadcast_to(zeros, shape).copy(),
        _axis(node),
        node.attributes.get_int("block_size", 0) or 0,
    )


def _axis(node: ir.Node) -> int:
    axis = node.attributes.get_int("axis", 1)
    if axis < 0:
        ranks = [len(v.shape) for v in (node.inputs[0], node.outputs[0]) if v and v.shape]
        axis = axis + ranks[0] if ranks else axis
    return axis


def _type_of(node: ir.Node, integers: ir.Value | None, has_zero: bool) -> QType | None:
    if has_zero:
        zero = node.inputs[2]
        dtype = None if zero is None or zero.const_value is None else zero.const_value.dtype
    elif integers is not None:
        dtype, producer = integers.dtype, integers.producer()
        if dtype is None and is_quantizer(producer):
            return _type_of(producer, None, len(producer.inputs) > 2)
    else:
        named = node.attributes.get_int("output_dtype", 0)
        if not named:
            return UINT8
        dtype = ir.DataType(named)
    return None if dtype is None else _QTYPES.get(dtype.value)


def _clip_levels(node: ir.Node, qtype: QType) -> tuple[int, int] | None:
    ends = [int(qtype.lowest), int(qtype.highest)]
    for place, index in enumerate((1, 2)):
        if (value := input_at(node, index)) is not None:
            bound = constant_of(value)
            if bound is None:
                return None
            ends[place] = int(bound.reshape(-1)[0])
    return ends[0], ends[1]
