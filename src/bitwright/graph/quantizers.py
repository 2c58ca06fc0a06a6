"""Quantizers of any model: standard ones, ONNX Runtime's, the vendor's; their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from bitwright.graph import iter_values
from bitwright.graph.constants import constant_of, input_at, maker_of
from bitwright.graph.quantized_ops import DEQUANTIZERS, FIX_NEURONS, INTEGER_OPS, QUANTIZERS
from bitwright.numerics import QTYPES, QType, dequantize
from bitwright.support.array_types import Array


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Integers in a graph, and the scale and zero point by which they stand for numbers.

    number = (integer - zero point) * scale
    """

    node: ir.Node
    """What quantizes them, dequantizes them, or computes with them."""
    values: ir.Value | None
    """The integers; None: a FixNeuron gives the numbers that they stand for."""
    scale_value: ir.Value | None
    zero_value: ir.Value | None
    axis: int = 1
    """The axis that several scales belong to."""
    block_size: int = 0

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What a quantizer reads besides the tensor."""
        return tuple(value for value in (self.scale_value, self.zero_value) if value is not None)

    @cached_property
    def scale(self) -> Array | None:
        """The scales; None: computed at run time, or there are none."""
        return constant_of(self.scale_value, defaults=True)

    @cached_property
    def zero_point(self) -> Array | None:
        """The zero points; None: computed at run time, or left out."""
        return constant_of(self.zero_value, defaults=True)

    @cached_property
    def stored(self) -> Array | None:
        """The integers, where they are constant."""
        return constant_of(self.values, defaults=True)

    @property
    def codes(self) -> Array:
        """The same of what is known to be constant."""
        assert self.stored is not None
        return self.stored

    @property
    def zero_point_type(self) -> ir.DataType | None:
        """The type of the zero point, where there is one."""
        if self.zero_value is not None and self.zero_value.dtype is not None:
            return self.zero_value.dtype
        return None if self.zero_point is None else ir.DataType.from_numpy(self.zero_point.dtype)

    @property
    def stored_type(self) -> ir.DataType | None:
        """The type of the integers, where the graph says it."""
        stated = None if self.values is None else self.values.dtype
        return stated or self.zero_point_type

    @property
    def type_name(self) -> str | None:
        """Its number type, where the graph says it; ONNX's default is uint8."""
        if self.stored_type is None:
            return "uint8" if self.zero_value is None else None
        return self.stored_type.name.lower()

    @property
    def qtype(self) -> QType | None:
        """The same, where it is a number type that we know."""
        return QTYPES.get(self.type_name or "")

    @property
    def integers(self) -> QType | None:
        """Its type where that is an integer of up to 16 bits, with its ends."""
        qtype = self.qtype
        return qtype if qtype is not None and qtype.is_integer and qtype.bits <= 16 else None

    @property
    def first_scale(self) -> float:
        """The scale, or the first of several."""
        assert self.scale is not None
        return float(self.scale.reshape(-1)[0])

    @property
    def first_zero(self) -> int:
        """The zero point, or the first of several; 0 where there is none."""
        return 0 if self.zero_point is None else int(self.zero_point.reshape(-1)[0])

    def constants(self) -> tuple[Array, Array] | None:
        """Return scales and zero points, or None where they are computed at run time."""
        scale, zero = self.scale, self.zero_point
        if scale is None or not scale.size or (zero is None and self.zero_value is not None):
            return None
        whole = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
        return scale.astype(np.float64), whole

    def numbers(self) -> Array | None:
        """Return the numbers that constant integers stand for."""
        found = self.constants()
        if found is None or self.stored is None:
            return None
        scale, zero = found[0].astype(np.float32), found[1]
        given = self.stored.astype(np.int64)
        return dequantize(given, scale, zero, axis=self.axis, block_size=self.block_size)


def quantizer_at(node: ir.Node, scale: int = 1, zero_point: int = 2) -> Quantizer:
    """Return the integers that a node writes, or that a dequantizer reads, with its parameters."""
    values: ir.Value | None = node.outputs[0]
    if node.op_type in DEQUANTIZERS | FIX_NEURONS:
        values = input_at(node, 0) if node.op_type in DEQUANTIZERS else None
    axis, size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    return Quantizer(node, values, input_at(node, scale), input_at(node, zero_point), axis, size)


def integer_operand(node: ir.Node, places: tuple[int | None, ...]) -> Quantizer:
    """Return integers that an operator reads, by the places of them, their scale and zero point."""
    values, scale, zero_point = (None if at is None else input_at(node, at) for at in places)
    found = Quantizer(node, values, scale, zero_point)
    own = INTEGER_OPS[node.op_type].weight_axis
    transposed = node.op_type == "QGemm" and node.attributes.get_int("transB", 0) == 1
    rank = 0 if found.stored is None else found.stored.ndim
    axis = 0 if transposed or own is None else own % max(rank, 1)
    return replace(found, axis=axis)


def stored_weight(node: ir.Node) -> Quantizer | None:
    """Return what a dequantizer or an integer op reads as a constant of integers."""
    op = INTEGER_OPS.get(node.op_type)
    if node.op_type in DEQUANTIZERS:
        found = quantizer_at(node)
    elif op is None or op.result is None or op.weight is None:
        return None
    else:
        found = integer_operand(node, op.weight)
    return None if found.stored is None or found.scale_value is None else found


class Quantizers:
    """All quantizers of a model, and through which of them its nodes read and write.

    It says where the scales are, as `targets.npu_operations` asks for them.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.found: dict[ir.Node, Quantizer] = {}
        for node in model.graph.all_nodes():
            if node.op_type in QUANTIZERS | DEQUANTIZERS | FIX_NEURONS:
                self.found[node] = quantizer_at(node)

    def quantizer_before(self, node: ir.Node, index: int) -> Quantizer | None:
        """Return the dequantizer through which a node reads an input."""
        maker = maker_of(input_at(node, index))
        if maker is None or maker.op_type not in DEQUANTIZERS | FIX_NEURONS:
            return None
        return self.found.get(maker)

    def read(self, node: ir.Node, index: int) -> str | None:
        """Return the scale of that dequantizer."""
        found = self.quantizer_before(node, index)
        return None if found is None else self._scale_name(found.node)

    def write(self, value: ir.Value) -> str | None:
        """Return the scale of the quantizer behind a result."""
        for use in value.uses():
            if use.node.op_type in QUANTIZERS | FIX_NEURONS and use.idx == 0:
                return self._scale_name(use.node)
        return None

    def origin(self, node: ir.Node, index: int) -> ir.Value | None:
        """Return the tensor behind an input, before all quantizers."""
        value = node.inputs[index]
        while value is not None and (maker := value.producer()) in self.found:
            assert maker is not None
            value = maker.inputs[0]
        return value

    def positions(self, counts: Callable[[float], bool]) -> dict[str, int]:
        """Return the fixed-point position of each lone scale that counts."""
        found = {}
        for quantizer in self.found.values():
            name, scale = self._scale_name(quantizer.node), quantizer.scale
            integers = quantizer.stored_type is None or quantizer.stored_type.is_integer()
            if name is None or scale is None or scale.size != 1 or not integers:
                continue
            number = float(scale.reshape(-1)[0])
            position = position_of(number)
            if position is not None and counts(number):
                found[name] = position
        return found

    @cached_property
    def _names(self) -> dict[ir.Value, str]:
        return {value: name for name, value in iter_values(self.model)}

    def _scale_name(self, node: ir.Node) -> str | None:
        value = input_at(node, 1)
        return None if value is None else self._names.get(value)


def name_of(node: ir.Node) -> str:
    """Return the name of a node, or what else tells it apart."""
    return node.name or f"{node.op_type} of {node.outputs[0].name!r}"


def position_of(scale: float) -> int | None:
    """Return the position p whose scale 2**-p is nearest; None where a scale is no scale."""
    if not (math.isfinite(scale) and scale > 0):
        return None
    return round(-math.log2(scale))
