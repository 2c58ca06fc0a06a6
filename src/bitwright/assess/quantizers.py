"""The quantizers of any model, whoever wrote it: standard ones, ONNX Runtime's, the vendor's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from bitwright.decide.ops.quantized import DEQUANTIZERS, FIX_NEURONS, QUANTIZERS
from bitwright.graph import iter_values
from bitwright.graph.constants import constant_of, input_at

__all__ = ["Quantizer", "Quantizers", "name_of", "position_of"]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """One Q, DQ or FixNeuron with its parameters; None for those computed at run time."""

    node: ir.Node
    scale: npt.NDArray[Any] | None
    zero_point: npt.NDArray[Any] | None
    zero_point_type: ir.DataType | None
    stored_type: ir.DataType | None
    """The type of the integers, where the graph says it."""


class Quantizers:
    """All quantizers of a model, and through which of them its nodes read and write.

    It tells where the scales are as `graph.npu_sites.Edges` wants to know it.
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
    """Return the position p whose scale 2**-p is nearest; None where a scale is no scale.

    >>> position_of(0.125), position_of(0.13), position_of(0.0)
    (3, 3, None)
    """
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
