"""Quantizers of any model: standard ones, ONNX Runtime's, the vendor's; their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import onnx_ir as ir

from bitwright.graph import iter_values
from bitwright.graph.constants import constant_of, input_at
from bitwright.graph.quantized_ops import DEQUANTIZERS, FIX_NEURONS, INTEGER_OPS, QUANTIZERS
from bitwright.numerics.quantize import dequantize
from bitwright.numerics.types import QTYPES, QType
from bitwright.support.array_types import Array


@dataclass(frozen=True, slots=True, eq=False)
class QuantizationParameters:
    """The scale and zero point of integers in a graph: number = (integer - zero) * scale."""

    scale: ir.Value
    zero_point: ir.Value | None
    axis: int = 1
    """The axis that several scales belong to."""
    block_size: int = 0

    @classmethod
    def at(cls, node: ir.Node, scale: int = 1, zero_point: int = 2) -> Self | None:
        """Return those that a node has at these inputs."""
        factor = input_at(node, scale)
        if factor is None:
            return None
        axis = node.attributes.get_int("axis", 1)
        block_size = node.attributes.get_int("block_size", 0)
        return cls(factor, input_at(node, zero_point), axis, block_size)

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What a quantizer reads besides the tensor."""
        return (self.scale,) if self.zero_point is None else (self.scale, self.zero_point)

    def constants(self) -> tuple[Array, Array] | None:
        """Return scales and zero points, or None where they are computed at run time."""
        scale, zero = constant_of(self.scale), constant_of(self.zero_point)
        if scale is None or not scale.size or (zero is None and self.zero_point is not None):
            return None
        whole = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
        return scale.astype(np.float64), whole

    def type_of(self, integers: ir.Value) -> QType | None:
        """Return the number type of the integers, where it is one that we know."""
        dtype = integers.dtype
        if dtype is None and self.zero_point is not None:
            dtype = self.zero_point.dtype
        return QTYPES.get("uint8" if dtype is None else dtype.name.lower())

    def dequantize(self, integers: Array) -> Array | None:
        """Return the numbers that integers stand for."""
        found = self.constants()
        if found is None:
            return None
        return dequantize(
            integers.astype(np.int64),
            found[0].astype(np.float32),
            found[1],
            axis=self.axis,
            block_size=self.block_size,
        )


class StoredWeight(NamedTuple):
    """A constant of integers, and what they stand for."""

    value: ir.Value
    integers: Array
    parameters: QuantizationParameters

    def numbers(self) -> Array | None:
        """Return the dequantized weight."""
        return self.parameters.dequantize(self.integers)


def stored_weight(node: ir.Node) -> StoredWeight | None:
    """Return what a dequantizer or an integer op reads as a constant of integers."""
    op = INTEGER_OPS.get(node.op_type)
    places = None if op is None or op.result is None else op.weight
    index, scale, zero_point = (0, 1, 2) if node.op_type in DEQUANTIZERS else places or (0, None, 0)
    if scale is None:
        return None
    value, parameters = input_at(node, index), QuantizationParameters.at(node, scale, zero_point)
    integers = constant_of(value)
    if value is None or integers is None or parameters is None:
        return None
    if op is not None:
        transposed = node.op_type == "QGemm" and node.attributes.get_int("transB", 0) == 1
        axis = 0 if transposed or op.weight_axis is None else op.weight_axis % integers.ndim
        parameters = QuantizationParameters(parameters.scale, parameters.zero_point, axis)
    return StoredWeight(value, integers, parameters)


@dataclass(frozen=True, slots=True)
class Quantizer:
    """One Q, DQ or FixNeuron with its parameters; None for those computed at run time."""

    node: ir.Node
    scale: Array | None
    zero_point: Array | None
    zero_point_type: ir.DataType | None
    stored_type: ir.DataType | None
    """The type of the integers, where the graph says it."""

    @property
    def type_name(self) -> str | None:
        """Its number type, where the graph says it; ONNX's default is uint8."""
        if self.stored_type is None:
            return "uint8" if len(self.node.inputs) < 3 else None
        return self.stored_type.name.lower()

    @property
    def integers(self) -> QType | None:
        """Its type where that is an integer of up to 16 bits, with its ends."""
        qtype = QTYPES.get(self.type_name or "")
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


class Quantizers:
    """All quantizers of a model, and through which of them its nodes read and write.

    It says where the scales are, as `targets.npu_operations` asks for them.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._names = {value: name for name, value in iter_values(model)}
        self.found: dict[ir.Node, Quantizer] = {}
        for node in model.graph.all_nodes():
            if node.op_type in QUANTIZERS | DEQUANTIZERS | FIX_NEURONS:
                self.found[node] = _quantizer(node)

    def quantizer_before(self, node: ir.Node, index: int) -> Quantizer | None:
        """Return the dequantizer through which a node reads an input."""
        value = input_at(node, index)
        maker = None if value is None else value.producer()
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


def _quantizer(node: ir.Node) -> Quantizer:
    scale, zero_point = (constant_of(input_at(node, index), defaults=True) for index in (1, 2))
    given = input_at(node, 2)
    zero_type = None if given is None else given.dtype
    if zero_type is None and zero_point is not None:
        zero_type = ir.DataType.from_numpy(zero_point.dtype)
    stored = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    if node.op_type in QUANTIZERS:
        stored = node.outputs[0].dtype or zero_type
    elif node.op_type in FIX_NEURONS or stored is None:
        stored = zero_type
    return Quantizer(node, scale, zero_point, zero_type, stored)
